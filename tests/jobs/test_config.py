"""Configs: reading and writing TOML, strict keys, presets, command-line options."""

import argparse
import datetime
import importlib
import math
import os
import subprocess
import sys
import time
from dataclasses import fields, replace
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s4s_core.app.estimate import IMG2IMG_STRENGTHS
from s4s_core.errors import ConfigError, S4SError
from s4s_core.names import EFFORTS, effort_text, efforts_text
from s4s_core.training.settings import Settings
from trainer import toml
from trainer.arguments import add_train_arguments, config_from_args
from trainer.config import (
    OPTIONS,
    PRESETS,
    TOML,
    TrainConfig,
    from_plain,
    from_toml,
    is_remote_or_device,
    read_config,
    rooted,
    to_toml,
    with_preset,
)
from trainer.jobs import job_config, queue_job
from trainer.models import ModelChoice, open_model
from trainer.training import call_plan, train

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.one_of(
    TEXT, st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, width=32)
).filter(lambda value: value not in (float("inf"), float("-inf")))
KEYS = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
TABLE = st.dictionaries(KEYS, VALUES | st.lists(VALUES, max_size=4), max_size=5)

FULL = TrainConfig(
    model=ModelChoice(
        "diffusers", "C:\\models\\a b.safetensors", prompts=("a cat", 'a "dog" \x7f'), cfg=7.5
    ),
    name="mein Löser",
    nfes=(8, 4, 4),
    budget=500,
    teacher="unipc-bh2:3:logsnr:20",
    options={"samples": 8, "relax": 2, "times": False, "strengths": (0.5, 0.3)},
)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(TABLE, st.dictionaries(KEYS, TABLE, max_size=2))
def test_python_reads_what_we_write(plain, sections):
    values = {**plain, **sections}
    assert importlib.import_module(TOML).loads(toml.dumps(values)) == values


def test_any_toml_is_read():
    text = "\ufeff# a comment\r\nmodel.path = 'C:\\models\\x'  # behind a value\n"
    text += 'model.kind = "comfyui"\nnfes = [ 4, # four\n 8,\n]\noptions = {samples = 1_0}\n'
    config = from_toml(text)
    assert (config.model, config.nfes) == (ModelChoice("comfyui", "C:\\models\\x"), (4, 8))
    assert config.options == {"samples": 10}


DEEP = 100_000
MALFORMED = {
    **{text: "not valid TOML: .* line [12]," for text in ("a = 1\na = 2\n", "[s]\n[s]\n", "a b")},
    **{f"a = {text}": "not valid TOML" for text in ("", "yes", "null", "[1 2]", "'x' y", "\0")},
    **{text: "nested too deeply" for text in ("a = " + "[" * DEEP, "a = " + "{a = " * 9999)},
    **{"seed = " + "9" * 5000: "not valid TOML", ".".join("a" * 9999) + " = 1": "500 dots"},
    **{"#" * 200_001: "at most 200,000 characters", '"' + "k" * 9999 + '" = 1': "Unknown key"},
}


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: repr(text[:12]))
def test_a_malformed_config_is_refused_on_one_line(text):
    with pytest.raises(ConfigError, match=MALFORMED[text]) as caught:
        from_toml(text)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


def test_a_python_without_a_toml_reader_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr("trainer.config.TOML", "no_such_reader")
    with pytest.raises(
        ConfigError, match="needs no_such_reader: .* -m pip install no_such_reader$"
    ):
        from_toml("")


HUGE = {"5,000 digits": -(10**5000), "deep": reduce(lambda inner, _: [inner], range(DEEP), 1)}
ODD = st.sampled_from(list(HUGE)).map(lambda name: HUGE[name]) | st.sampled_from(
    [
        *(None, 10**400, math.nan, math.inf, 2**64, -0.0, [], {}, "", "auto", "\0"),
        *("9" * 5000, "unipc-bh2:3:edm:" + "9" * 5000, f"heun:{'9' * 5000}:edm:5", "\ud800"),
        *("~nosuchuser/x", "x" * 5000, "\x1b[2J\x07", "٣", "cuda:1", "comfyui", "python", "s4s"),
        *(datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1), datetime.time(), [[1]], [None]),
    ]
)
ANY = st.recursive(
    ODD | st.text() | st.integers() | st.floats() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
PLACES = [
    *((each.name,) for each in fields(TrainConfig)),
    *(("model", each.name) for each in fields(ModelChoice)),
    *(("options", name) for name in (*OPTIONS, "central")),
]


@pytest.mark.parametrize("text", ["." * 501, "'''" + "." * 501, '"#' + "." * 501, "\\" * 999 + "."])
def test_what_is_accepted_can_be_read(text):
    """Dots, quotes, escapes and comments inside of a text are neither keys nor limits."""
    config = TrainConfig(model=ModelChoice(prompts=(text, text), negative=text))
    assert from_toml(to_toml(config)) == config


LONG_KEY = ".".join("a" * 502)


@pytest.mark.parametrize(
    "text",
    [
        LONG_KEY + " = 1",
        f"[{LONG_KEY}]",
        ".".join(['"a"'] * 502) + " = 1",
        f"x = {{{LONG_KEY} = 1}}",
        f"# '''\n{LONG_KEY} = 1\n# '''",
        f'x = {{y = """z"""", {LONG_KEY} = "1"}}',
        f"x = {{y = '''z'''', {LONG_KEY} = '1'}}",
        f'x = "\\"" # "\n{LONG_KEY} = "1"',
    ],
    ids=lambda text: text[:16],
)
def test_long_keys_are_found_behind_any_text(text):
    with pytest.raises(ConfigError, match="at most 500 dots"):
        from_toml(text)


def test_a_text_that_does_not_end_is_refused_in_no_time():
    for text in ('"' + '\\"' * 99_000, "'" * 199_999, '"""' + '\\"' * 99_000, "'''a" * 49_999):
        began = time.process_time()
        with pytest.raises(ConfigError):
            from_toml(text)
        assert time.process_time() - began < 5


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.sampled_from(PLACES), ANY, min_size=1, max_size=2))
def test_any_value_in_any_field_gives_a_config_or_one_sentence(values):
    """And what is accepted can be written, read and queued."""
    plain = {}
    for (first, *rest), value in values.items():
        if not rest:
            plain[first] = value
        elif isinstance(plain.setdefault(first, {}), dict):
            plain[first] = {**plain[first], rest[0]: value}
    try:
        config = from_plain(plain)
    except ConfigError as error:
        text = str(error)
        assert text.isprintable() and text.endswith(".") and len(text) < 500
    else:
        assert from_toml(to_toml(config)) == config
        assert rooted(config).title.isprintable() and config.model.device.isascii()


def test_a_config_survives_its_file_and_an_unreadable_file_is_named(tmp_path):
    path = tmp_path / "config.toml"
    for config in (TrainConfig(), FULL):
        path.write_text(to_toml(config), encoding="utf-8")
        assert read_config(path) == config == from_plain(config.plain())
    assert FULL.nfes == (4, 8) and FULL.title == "mein Löser"
    path.write_bytes(b"\xff\xfe\x00")
    for bad in (path, tmp_path / "none.toml"):
        with pytest.raises(ConfigError, match=bad.name):
            read_config(bad)


BAD = r"""
colour = 1 -> Unknown key 'colour' in the config
[model]; colour = 1 -> Unknown key 'colour' in \[model\]
model = 1 -> must be a section
[options]; seed = 1 -> Unknown option 'seed'
[options]; samples = 1.5 -> samples must be a whole number
[options]; samples = 9999999 -> samples must be between 0 and 1000000
[options]; samples = -1 -> samples
[options]; times = 1 -> times must be true or false
[options]; strengths = 0.5 -> strengths must be a list
[options]; strengths = ['x'] -> every entry of strengths must be a number
[options]; strengths = [1] -> every entry of strengths must be between 0.01 and 0.99
nfes = 5 -> nfes must be a list
nfes = [] -> at least one step count
nfes = [0] -> between 1 and 100
nfes = [true] -> every entry of nfes must be a whole number
budget = 1.5 -> budget must be a whole number
budget = -1 -> budget must be between 0 and 1000000000
seed = -1 -> between 0 and 4294967295
seed = 4294967296 -> between 0 and 4294967295
effort = 'mad' -> Unknown effort 'mad'
method = 'magic' -> Unknown method 'magic'
objective = 'fid' -> Unknown objective 'fid'
objective = 'l1' -> gauss-newton cannot
teacher = 'unipc' -> Invalid teacher 'unipc'
teacher = 'unipc-bh2:3:edm:0' -> Invalid teacher
teacher = 'foo:3:edm:20' -> Unknown solver 'foo'
teacher = 'dpm-solver:3:edm:20' -> no table of 20 calls
[options]; init = 'ipndm:3:bar' -> Unknown schedule 'bar'
[options]; init = 'heun:0:edm' -> heun:0:edm
nfes = [4, 5]; [options]; init = 'dpm-solver:2:edm' -> no table of 5 calls
[options]; domain = 'nonsense' -> Unknown time domain 'nonsense'
[options]; rate = -1 -> rate
[options]; ending = -5 -> ending
name = 5 -> name must be text
name = "a\nb" -> name must be one line
[model]; kind = 'x' -> Unknown model 'x'
[model]; cfg = 'x' -> cfg must be a number
[model]; cfg = inf -> cfg must be a finite number
[model]; prompts = 5 -> prompts must be a list
name = 2026-01-01 -> name must be text
"""


@pytest.mark.parametrize("case", BAD.strip().splitlines())
def test_a_bad_config_is_refused_on_one_line(case):
    text, says = case.split(" -> ")
    with pytest.raises(ConfigError, match=says) as caught:
        from_toml(text.replace("; ", "\n"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prompts", [("x" * 90_000,), ("\u732b" * 12_000,), ("x",) * 20_000])
def test_the_length_of_prompts_is_limited(prompts):
    with pytest.raises(ConfigError, match="Use fewer"):
        TrainConfig(model=ModelChoice(prompts=prompts))
    TrainConfig(model=ModelChoice(prompts=("a cat on a mat",) * 2000))


@pytest.mark.parametrize("fields", [{"prompts": ("\ud800",)}, {"path": "caf\udce9"}])
def test_text_that_cannot_be_saved_is_refused(fields):
    """A page can send lone surrogates, and file names need not be UTF-8."""
    with pytest.raises(ConfigError, match="not valid Unicode"):
        from_plain({"model": {"kind": "diffusers", "path": "x", **fields}})


def test_the_options_are_those_of_fit():
    named = {"method", "nfes", "seed", "budget", "objective"}
    assert set(OPTIONS) | named == {each.name for each in fields(Settings)}


def test_every_seed_of_a_webui_trains():
    config = TrainConfig(seed=2**32 - 1, model=ModelChoice("mixture"), nfes=(2,), budget=600)
    few = {"samples": 1, "validation": 1, "held_out": 1, "init": "euler:1:edm"}
    result = train(replace(config, options=few), open_model(config.model))
    assert result.pack.metadata["training"]["seed"] == 2**32 - 1


def test_effort_is_model_calls_and_a_budget_wins():
    assert {name: TrainConfig(effort=name).calls for name in EFFORTS} == EFFORTS
    assert TrainConfig(effort="quick", budget=77).calls == 77
    assert TrainConfig(method="s4s").calls is None
    assert TrainConfig(method="s4s", budget=77).settings().budget == 77


def test_presets_keep_the_model_and_set_the_rest():
    options = {"strengths": [0.5], "starts": 1}
    config = TrainConfig(ModelChoice("mixture"), "n", (4,), seed=3, budget=9, options=options)
    for name in PRESETS:
        changed = with_preset(config, name)
        assert changed.options == {**PRESETS[name].changes.get("options", {}), "strengths": [0.5]}
        kept = (changed.model, changed.nfes, changed.seed, changed.name)
        assert kept == (config.model, (4,), 3, "n")
        assert changed.budget == 0 and from_toml(to_toml(changed)) == changed
    alt = with_preset(config, "paper: S4S-Alt")
    assert alt.method == "s4s-alt" and alt.options["samples"] == 1400
    with pytest.raises(ConfigError, match="Unknown preset"):
        with_preset(config, "mad")


def test_a_file_has_room_for_all_tables():
    every = tuple(range(1, 101))
    TrainConfig(nfes=every, options={"strengths": [0.5]})
    with pytest.raises(ConfigError, match="cannot hold 300 tables: use at most 200"):
        TrainConfig(nfes=every, options={"strengths": [0.3, 0.5]})


def test_relative_paths_become_absolute(tmp_path, monkeypatch):
    """Those of a model if they exist, and ComfyUI's folder."""

    def find(*given, **more):
        return rooted(TrainConfig(model=ModelChoice(*given, **more))).model

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COMFYUI_PATH", raising=False)
    for name in ("net.py", "there.safetensors"):
        (tmp_path / name).touch()
    assert find("python", "net.py:make").path == f"{tmp_path / 'net.py'}:make"
    assert find("comfyui", "there.safetensors").path == str(tmp_path / "there.safetensors")
    for kind, path in (("python", "package.module:make"), ("comfyui", "sdxl.safetensors")):
        assert find(kind, path) == ModelChoice(kind, path)
    monkeypatch.setenv("COMFYUI_PATH", "comfy")
    assert find("comfyui", "x", host="../other").host == str(tmp_path / ".." / "other")
    assert find("comfyui", "x").host == str(tmp_path / "comfy")
    assert rooted(TrainConfig()).model.host == ""


def parse(*arguments):
    """Return the config of a command line."""
    parser = argparse.ArgumentParser()
    add_train_arguments(parser)
    return config_from_args(parser.parse_args(arguments))


def test_a_name_may_have_the_spaces_of_any_script():
    assert TrainConfig(name="模型\u3000v2\u00a0a").title == "模型\u3000v2\u00a0a"
    with pytest.raises(ConfigError, match="one line"):
        TrainConfig(name="a\u2028b")


def test_the_command_line_changes_a_file(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(to_toml(FULL), encoding="utf-8")
    assert parse("--config", str(path)) == FULL
    changed = parse("--config", str(path), "--nfe", "6,5", "--init", "ipndm:3:edm", "--cfg", "2")
    assert changed.nfes == (5, 6) and changed.model.path == FULL.model.path
    assert changed.options == {**FULL.options, "init": "ipndm:3:edm"} and changed.model.cfg == 2.0
    other = parse("--model", "diffusers:/models/x", "--prompt", "a", "--prompt", "b")
    assert other.model.path == "/models/x" and other.model.prompts == ("a", "b")
    assert parse("--preset", "paper: S4S").method == "s4s" and parse() == TrainConfig()
    assert parse("--strengths").options == {"strengths": list(IMG2IMG_STRENGTHS)}
    both = parse("--config", str(path), "--strengths", "0.4", "--init", "ipndm:3:edm")
    assert both.options == {**FULL.options, "strengths": [0.4], "init": "ipndm:3:edm"}
    for bad, says in (("a", "such as 0.3,0.5,0.75"), ("", "such as"), ("7", "between 0.01")):
        with pytest.raises(S4SError, match=says):
            parse("--strengths", bad)


REMOTE = (
    *(r"\\server\share\x.safetensors", "//server/share/x", r"\\.\pipe\x", r"\\?\UNC\s\x", r"\/s/x"),
    *(r"\??\UNC\server\x", "/dev/zero", "/tmp/../dev/zero", "/proc/self/mem", "CON", "C:\\nul.txt"),
    *("NUL.safetensors", "a/COM1", "lpt9:", "aux .x", "C:/x/CONIN$", "C:NUL", "x/lpt0", "/net/h/x"),
)
LOCAL = (
    "/models/x",
    "C:\\models\\x",
    "../x",
    "~/x",
    "x/console",
    "nullable.safetensors",
    "/device/x",
)


def test_a_link_to_a_device_needs_consent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        os.symlink("/dev", "sub")
    except OSError:
        pytest.skip("this system makes no links")
    Path("shared.toml").write_text('[model]\nkind = "diffusers"\npath = "sub/zero"\n')
    with pytest.raises(ConfigError, match="on a network or a device"):
        parse("--config", "shared.toml")
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("shared.toml").write_text('[model]\nkind = "diffusers"\npath = "~/sub/zero"\n')
    with pytest.raises(ConfigError, match="on a network or a device"):
        parse("--config", "shared.toml")


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "python", "path": "evil.py:make"},
        {"kind": "comfyui", "path": "x", "host": "/tmp/evil"},
        {"host": "/tmp/evil"},  # a typed --model comfyui would import from it
        *({"kind": "diffusers", "path": path} for path in REMOTE),
    ],
    ids=str,
)
def test_a_file_with_code_or_a_remote_path_needs_consent(model, tmp_path, home):
    """A queued job has its owner's consent: it was typed, or allowed."""
    path = tmp_path / "shared.toml"
    path.write_text(toml.dumps({"model": model}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"shared\.toml .*Add --allow-code if you trust it"):
        parse("--config", str(path))
    allowed = parse("--config", str(path), "--allow-code")
    assert allowed.model == ModelChoice(**model)
    assert job_config(queue_job(allowed, start=False)).model.kind == allowed.model.kind
    if "kind" in model:
        typed = "{kind}:{path}".format(**model), "--host", model.get("host", "")
        for file in ((), ("--config", str(path))):
            assert parse(*file, "--model", *typed).model == allowed.model


def test_a_working_folder_on_a_network_is_no_remote_model(tmp_path, monkeypatch):
    """What stays in it needs no consent; what leads to another machine or a device does."""
    for folder in ("/afs/school/me", "/net/host/me"):
        monkeypatch.setattr(os, "getcwd", lambda folder=folder: folder)
        assert not any(map(is_remote_or_device, ("", "x", "../x")))
        away = ("/net/a/x", "/afs/a/x", "../../../dev/zero", "//server/x")
        assert all(map(is_remote_or_device, away))
    monkeypatch.setattr(os, "getcwd", lambda: "/dev/shm")
    assert not is_remote_or_device("") and is_remote_or_device("../zero")
    monkeypatch.setattr(os, "getcwd", lambda: "/home/me")
    assert is_remote_or_device("../../net/h/x")


def test_a_remote_path_is_refused_before_it_is_looked_up(monkeypatch):
    """On Windows, to look it up is to log in there."""

    def look_up(path):
        raise AssertionError(path)

    monkeypatch.setattr(os.path, "realpath", look_up)
    assert all(map(is_remote_or_device, (p for p in REMOTE if ".." not in p)))


def test_files_of_this_machine_need_no_consent(tmp_path):
    path = tmp_path / "shared.toml"
    for name in LOCAL:
        path.write_text(
            toml.dumps({"model": {"kind": "diffusers", "path": name}}), encoding="utf-8"
        )
        assert parse("--config", str(path)).model.path == name


HOSTILE = {
    "[model]\nkind = 'python'\npath = 'evil.py:make'\n": "which is code. Add --allow-code",
    "[model]\nprompts = 5\n": "prompts must be a list",
    f"[model]\ncfg = {'9' * 400}\n": "cfg must be a finite number",
    f"teacher = 'heun:2:edm:{'9' * 5000}'\n": "Invalid teacher 'heun:2:edm:999",
    '[model]\ndevice = "\\u001b[2Jcuda"\n': "device must be auto",
    f"a = {'[' * 9999}": "nested too deeply",
    f"[model]\nkind = 'diffusers'\npath = '{'x' * 5000}'\n": "path must be a path",
}


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:40]))
def test_the_real_command_refuses_a_hostile_config_on_one_line(text, tmp_path):
    (tmp_path / "evil.py").write_text("open('ran', 'w')")
    (tmp_path / "shared.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "trainer", "train", "--config", "shared.toml"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "") and HOSTILE[text] in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr[:-1].isprintable()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evil.py", "shared.toml"]


@pytest.mark.parametrize("effort", EFFORTS)
def test_an_effort_is_described_by_all_that_it_spends(effort):
    """For one step count, and for each one more."""
    spent = [call_plan(TrainConfig(nfes=nfes, effort=effort)).total for nfes in ((5,), (5, 6))]
    first, further = spent[0], spent[1] - spent[0]
    text = f"{first:,} model calls, {further:,} for each further step count"
    assert text == effort_text(effort) and text in efforts_text() and text in PRESETS[effort].help


def test_configs_of_the_old_preset_thorough_still_load():
    old = 'effort = "thorough"\n[options]\nsamples = 96\nstarts = 4\n'
    assert from_toml(old).options == {"samples": 96, "starts": 4}
    assert with_preset(from_toml(old), "thorough").options == {}
