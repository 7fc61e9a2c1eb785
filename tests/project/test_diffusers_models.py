"""Diffusers pipelines as models: the same as the pipeline's own call, for every type."""

import json
import os
import shutil

import pytest
import tiny_pipelines as tiny
import torch
from safetensors.torch import save_file
from tiny_checkpoint import save_checkpoint

from s4s_core import classical_table, sample
from s4s_core.errors import ModelError
from s4s_core.spaces import ShiftedTimes
from s4s_core.teacher import draw_noise
from trainer import extras
from trainer.models import ModelChoice, open_model
from trainer.models.contract import file_digest
from trainer.models.pipeline import PipelineModel, choose_dtype
from trainer.models.prediction import denoised, discrete_times, network_input

# diffusers renames torch_dtype, and it and numpy 2 are not of one mind yet.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:diffusers"),
    pytest.mark.filterwarnings("ignore:.*torch_dtype:FutureWarning"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("pipelines")


@pytest.fixture(scope="module", params=tiny.KINDS)
def opened(request, folders):
    """(kind, pipeline, model) of each type."""
    pipe, folder = tiny.save(request.param, folders)
    return request.param, pipe, open_model(tiny.choice(folder))


def test_euler_through_the_model_is_the_pipeline_itself(opened):
    kind, pipe, model = opened
    noise = torch.randn(2, *model.shape, generator=torch.Generator().manual_seed(1))
    expected = tiny.run(kind, pipe, noise, 5)
    nodes = pipe.scheduler.sigmas.double().cpu()
    table = classical_table("euler", nodes, space=model.space)
    start = noise * (pipe.scheduler.init_noise_sigma if model.space == "ve" else 1)
    with torch.no_grad():
        result = sample(model.denoise, start, table, torch.tensor([0, 1]))
        pictures = model.decode(result)
    assert (result - expected).abs().max() < 1e-4 * expected.abs().max()
    shown = tiny.run(kind, pipe, noise, 5, output="pt")
    assert pictures.shape == (2, 3, tiny.SIZE, tiny.SIZE)
    assert (pictures - shown).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["sd1", "sd3"])
def test_the_encoders_have_left_the_device_when_the_network_comes(folders, monkeypatch, kind):
    pipe, folder = tiny.save(kind, folders)
    moves = []
    for name, part in pipe.components.items():
        if name.startswith(("text_encoder", "unet", "transformer")) and part is not None:
            monkeypatch.setattr(part, "to", lambda place, n=name: moves.append((n, place)))
    PipelineModel(pipe, tiny.choice(folder), torch.device("cpu"), "digest")
    *before, network = moves
    assert not network[0].startswith("text_encoder")
    encoders = {name for name, _ in before}
    assert encoders == {name for name in pipe.components if name.startswith("text_encoder")}
    for encoder in encoders:
        assert [place for name, place in before if name == encoder] == [torch.device("cpu"), "cpu"]


def test_pipelines_fulfil_the_contract(opened):
    kind, pipe, model = opened
    assert model.space == ("ve" if kind.startswith(("sd1", "sd2", "sdxl")) else "flow")
    assert 0 < model.sigma_min < model.sigma_max
    x, cond = draw_noise(model, 3, 0)
    assert cond.shape == (3,) and cond.max() < len(tiny.PROMPTS)
    with torch.no_grad():
        full = model.denoise(x, torch.full((3,), model.sigma_max), cond)
        row = model.denoise(x[1:2], torch.full((1,), model.sigma_max), cond[1:2])
        free = model.denoise(x, torch.full((3,), model.sigma_max))
    assert torch.allclose(full[1:2], row, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(full, free)
    told = 1.0 if kind == "flux" else tiny.CFG
    assert model.about["cfg"] == [told, told]
    assert model.about["resolution"] == [tiny.SIZE, tiny.SIZE]
    assert model.about["model"]["hash"].startswith("diffusers:")
    assert model.about["model"].get("guidance") == (tiny.CFG if kind == "flux" else None)
    assert not any("text_encoder" in name for name in vars(model))


def test_each_row_has_its_own_guidance(opened):
    kind, _, model = opened
    x, cond = draw_noise(model, 3, 0)
    sigma, rows = torch.full((3,), 0.8 * model.sigma_max), []

    def count(_module, _given, out):
        rows.append(len(out[0]))

    hook = model.network.register_forward_hook(count)

    def denoise(*guidance):
        with torch.no_grad():
            return model.denoise(x, sigma, cond, *guidance)

    plain, mixed = denoise(), denoise(torch.tensor([0.0, 1.0, 2.5]))
    assert torch.equal(denoise(torch.ones(3)), plain)
    for row, multiplier in enumerate((0.0, 1.0, 2.5)):
        alone = denoise(torch.full((3,), multiplier))
        assert torch.allclose(mixed[row], alone[row], atol=1e-4, rtol=1e-4)
    hook.remove()
    assert model.takes_guidance == (kind != "flux")
    assert rows == ([3] * 6 if kind == "flux" else [6, 6, 6, 3, 6, 6])
    assert torch.equal(mixed, plain) == (kind == "flux")


def test_the_schedule_has_the_pipelines_shift(opened):
    kind, pipe, model = opened
    if model.space == "ve":
        pytest.skip("no flow model")
    tiny.run(kind, pipe, torch.zeros(2, *model.shape), 4)
    times = torch.linspace(1, 0.25, 4, dtype=torch.float64)
    if kind == "sd3":  # its scheduler spaces the shifted times evenly, then shifts them again
        times = torch.linspace(1, model.sigma_min, 4, dtype=torch.float64)
    expected = pipe.scheduler.sigmas[:-1].double()
    assert torch.allclose(model.times.sigma(times), expected, atol=1e-6)
    assert torch.allclose(model.times.time(model.times.sigma(times)), times)


def test_half_precision_and_offload(folders):
    _, folder = tiny.save("flux", folders)
    whole, half = (open_model(tiny.choice(folder, dtype=d)) for d in ("float32", "bfloat16"))
    moved = open_model(tiny.choice(folder, offload=True))
    times = []
    embed = half.network.time_text_embed.time_proj
    embed.register_forward_pre_hook(lambda module, arguments: times.append(arguments[0]))
    x, cond = draw_noise(whole, 2, 0)
    sigma = torch.tensor([0.701, 0.702])  # one time in bfloat16, if it were rounded to it
    with torch.no_grad():
        exact, rounded = whole.denoise(x, sigma, cond), half.denoise(x, sigma, cond)
        assert half.network.dtype == torch.bfloat16 and rounded.dtype == torch.float32
        assert (exact - rounded).abs().max() < 0.05
        assert torch.allclose(times[0], torch.tensor([701.0, 702.0]))
        assert torch.equal(moved.denoise(x, sigma, cond), exact)
        assert torch.equal(moved.decode(x), whole.decode(x))
        assert half.decode(x).dtype == torch.float32
    assert moved.fingerprint == whole.fingerprint != half.fingerprint
    _, folder = tiny.save("sd1", folders)
    model = open_model(tiny.choice(folder, dtype="float16"))
    assert model.network.dtype == model.texts["text"].dtype == torch.float16
    assert model.vae.dtype == torch.float32  # float16 is too narrow for it
    for device, wide, dtype in (
        ("cpu", False, torch.float32),
        ("cuda", False, torch.float16),
        ("cuda", True, torch.bfloat16),
    ):
        assert choose_dtype("auto", torch.device(device), wide) == dtype


def test_fingerprints_follow_all_that_matters(folders):
    _, folder = tiny.save("sd1", folders)
    changes = [{}, {}, {"cfg": 5.0}, {"negative": "sea"}, {"prompts": ("a dog",)}]
    first, again, *others = (open_model(tiny.choice(folder, **c)).fingerprint for c in changes)
    assert first == again and len({first, *others}) == 4


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_x0_comes_back_from_every_kind_of_prediction(prediction):
    generator = torch.Generator().manual_seed(0)
    x0, eps = torch.randn(2, 2, 1, 3, 3, generator=generator, dtype=torch.float64)
    sigma = torch.tensor([0.3, 9.0], dtype=torch.float64)
    level = sigma.reshape(2, 1, 1, 1)
    x = x0 + level * eps
    alpha, noise = 1 / (1 + level**2).sqrt(), level / (1 + level**2).sqrt()
    output = {"epsilon": eps, "v_prediction": alpha * eps - noise * x0, "sample": x0}[prediction]
    assert torch.allclose(denoised(prediction, x, output, sigma), x0)
    assert torch.allclose(network_input("ve", x, sigma), alpha * x)
    assert torch.equal(network_input("flow", x, sigma), x)


def test_the_noise_levels_of_schedulers():
    zero_snr = tiny.BETAS | {"rescale_betas_zero_snr": True}
    assert discrete_times(zero_snr).sigma_max == pytest.approx(4096, rel=1e-3)
    assert discrete_times(tiny.BETAS).sigma_max == pytest.approx(14.6146, rel=1e-4)
    assert ShiftedTimes(1.0).sigma_min == pytest.approx(0.001)


def test_bad_folders_and_files_are_refused(folders, tmp_path):
    _, folder = tiny.save("sd1", folders)
    (tmp_path / "old.ckpt").write_bytes(b"x")
    (tmp_path / "bad.safetensors").write_bytes(b"x" * 40)
    save_file({"lora.weight": torch.zeros(2)}, tmp_path / "lora.safetensors")
    for name in ("WanPipeline", "FluxPipeline"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_index.json").write_text(json.dumps({"_class_name": name}))
    for path, sentence in {
        tmp_path: "is not a diffusers pipeline folder",
        tmp_path / "nothing": "There is no file or folder",
        "~nosuchuser/x": "There is no file or folder",
        "x" * 4000: "There is no file or folder",
        tmp_path / "old.ckpt": "is not a .safetensors file",
        tmp_path / "bad.safetensors": "damaged or not a checkpoint",
        tmp_path / "lora.safetensors": "not a complete SD 1",
        tmp_path / "WanPipeline": "is a WanPipeline, which is not supported",
        tmp_path / "FluxPipeline": "diffusers could not load",
        folder: "17x16: width and height must be multiples of 2",
    }.items():
        with pytest.raises(ModelError, match=sentence):
            open_model(ModelChoice("diffusers", str(path), width=17, height=16))


def test_a_folder_of_odd_json_is_refused_in_a_sentence(folders, tmp_path):
    """Nested too deeply, of the wrong types, or with escapes for the terminal."""
    _, folder = tiny.save("sd1", folders)
    shutil.copytree(folder, tmp_path / "odd")
    scheduler = json.loads((folder / "scheduler" / "scheduler_config.json").read_text())
    betas = [{"beta_start": "x"}, {"beta_end": 5}, {"beta_end": 10**400}, {"trained_betas": []}]
    odd = {
        "model_index.json": ['{"a":' * 100_000, "[]", "5"],
        "scheduler/scheduler_config.json": [
            *('{"a":' * 100_000, "[]"),
            *(json.dumps(scheduler | beta) for beta in (*betas, {"beta_schedule": "\x1b[2J"})),
        ],
        "unet/config.json": ["[" * 100_000],
        "tokenizer/tokenizer_config.json": ["5"],
    }
    for name, texts in odd.items():
        for text in texts:
            (tmp_path / "odd" / name).write_text(text)
            with pytest.raises(ModelError, match=f"{tmp_path}") as caught:
                open_model(tiny.choice(tmp_path / "odd"))
            assert str(caught.value).isprintable() and len(str(caught.value)) < 600
        shutil.copy(folder / name, tmp_path / "odd" / name)
    assert open_model(tiny.choice(tmp_path / "odd")).name == "odd"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system makes no pipes")
@pytest.mark.parametrize("spoil", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize(
    "name",
    ["model_index.json", "scheduler/scheduler_config.json", "unet/more.safetensors", "unet/x.txt"],
)
def test_a_folder_with_pipes_or_devices_is_refused_at_once(folders, tmp_path, name, spoil):
    """Reading one would never end. Links to files are read, as the Hugging Face cache has them."""
    _, folder = tiny.save("sd1", folders)
    odd = tmp_path / "odd"
    shutil.copytree(folder, odd, copy_function=os.symlink)
    assert open_model(tiny.choice(odd)).fingerprint == open_model(tiny.choice(folder)).fingerprint
    (odd / name).unlink(missing_ok=True)
    spoil(odd / name)
    with pytest.raises(ModelError, match="not a file|no valid model_index"):
        open_model(tiny.choice(odd))


def test_huge_texts_of_a_folder_are_not_read(folders, tmp_path, monkeypatch):
    _, folder = tiny.save("sd1", folders)
    shutil.copytree(folder, tmp_path / "odd")
    for name, sentence in (
        ("unet/config.json", "config.json is larger than 67,108,864 bytes"),
        ("model_index.json", "no valid model_index.json"),
    ):
        os.truncate(tmp_path / "odd" / name, 1 << 40)
        with pytest.raises(ModelError, match=sentence):
            open_model(tiny.choice(tmp_path / "odd"))


def test_a_broken_extra_is_named(monkeypatch, tmp_path):
    def broken(name):
        raise RuntimeError("torchaudio does not fit")

    monkeypatch.setattr(extras.importlib, "import_module", broken)
    with pytest.raises(ModelError, match="Could not import diffusers: torchaudio does not fit"):
        extras.import_extras("diffusers")


def test_one_file_is_the_same_model(folders, tmp_path, monkeypatch):
    """A checkpoint in the original names, with its configuration in a folder of its name."""
    pipe, folder = tiny.save("sd1", folders)
    save_checkpoint(pipe, tmp_path / "tiny.safetensors")
    shutil.copytree(folder, tmp_path / "tiny")
    for weights in (tmp_path / "tiny").rglob("*.safetensors"):
        weights.unlink()
    whole = open_model(tiny.choice(folder))
    single = open_model(tiny.choice(tmp_path / "tiny.safetensors"))
    x, cond = draw_noise(whole, 2, 0)
    sigma = torch.full((2,), 3.0)
    with torch.no_grad():
        assert torch.allclose(single.denoise(x, sigma, cond), whole.denoise(x, sigma, cond))
        assert torch.allclose(single.decode(x), whole.decode(x), atol=1e-6)
    assert single.about["model"]["hash"] == file_digest(tmp_path / "tiny.safetensors")

    def offline(*arguments, **options):
        raise OSError("no route to host")

    shutil.rmtree(tmp_path / "tiny")
    monkeypatch.setattr(tiny.diffusers.StableDiffusionPipeline, "from_single_file", offline)
    with pytest.raises(ModelError, match="no route to host .to load it offline"):
        open_model(tiny.choice(tmp_path / "tiny.safetensors"))
