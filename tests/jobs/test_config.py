"""Configs: reading and writing TOML, strict keys, presets, command-line options."""

import argparse
import re
from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s4s_core.errors import ConfigError, ModelError
from s4s_core.names import EFFORTS, effort_text, efforts_text
from s4s_core.training.settings import Settings
from trainer import toml
from trainer.arguments import add_train_arguments, config_from_args
from trainer.config import (
    OPTIONS,
    PRESETS,
    TrainConfig,
    from_plain,
    from_toml,
    read_config,
    rooted,
    to_toml,
    with_preset,
)
from trainer.models import ModelChoice, open_model
from trainer.training import call_plan, train

try:
    import tomllib
except ImportError:  # Python 3.10
    tomllib = None

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
    options={"samples": 8, "relax": 2, "times": False},
)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(TABLE, st.dictionaries(KEYS, TABLE, max_size=2))
def test_we_and_python_read_what_we_write(plain, sections):
    values = {**plain, **sections}
    text = toml.dumps(values)
    assert toml.loads(text) == values
    assert tomllib is None or tomllib.loads(text) == values


def test_comments_lists_and_literals_are_read():
    text = "\ufeff# a comment\npath = 'C:\\models\\x'  # behind a value\n"
    text += 'many = [\n  "a # b",\n  # between\n  "c",  # behind\n  \'d "e"\' # the last\n]\n'
    text += "flat = [1, 2.5, true]\n[model]  # a section\non = false\n"
    many, flat = ["a # b", "c", 'd "e"'], [1, 2.5, True]
    expected = {"path": "C:\\models\\x", "many": many, "flat": flat, "model": {"on": False}}
    assert toml.loads(text) == expected


LAYOUT = st.sampled_from(["", " ", "\n", ' # it\'s a [comment], "so"\n', "\r\n\t"])
ITEM = st.sampled_from(["'a'", '"b"', "'#'", '",]"', "'C:\\x'", "1", "-2.5", "1e3", "true"])


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_lists_of_any_layout_are_read_as_python_reads_them(data):
    """Comments, line breaks and spaces around every token; a comma behind the last item."""
    draw = lambda: data.draw(LAYOUT)  # noqa: E731
    items = data.draw(st.lists(ITEM, max_size=4))
    text = "a = [" + draw()
    text += ",".join(draw() + item + draw() for item in items)
    text += ("," + draw() if items and data.draw(st.booleans()) else "") + "]"
    found = toml.loads(text + "  # the end\nb = 1\n")
    assert found["b"] == 1 and len(found["a"]) == len(items)
    assert tomllib is None or found["a"] == tomllib.loads(text)["a"]


INVALID = """a = ; a = [1, 2; a = [1 2]; a = [1,,2]; a = [,]; a = [1] 2; a = ['x' # ]; a = nan
a = yes; a = Infinity; a = null; a = {"b": 1}; a = [[1]]; a = 1 2; a = 'x' y
[[models]]; just words"""


@pytest.mark.parametrize("text", ["a = 1\na = 2", "[s]\n[s]", *re.split("; |\n", INVALID)])
def test_an_invalid_line_is_named(text):
    with pytest.raises(ConfigError, match=r"^Line [1-9] of the config"):
        toml.loads(text)


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
[options]; samples = 1.5 -> 'samples' must be a value such as 0
[options]; samples = -1 -> samples
[options]; times = 1 -> 'times' must be a value such as True
nfes = 5 -> nfes must be a list
nfes = [] -> at least one step count
nfes = [0] -> between 1 and 100
nfes = [true] -> nfes must be a list
budget = 1.5 -> budget must be a whole number
budget = -1 -> budget must be >= 0
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
[model]; cfg = 'x' -> The model's cfg
"""


@pytest.mark.parametrize("case", BAD.strip().splitlines())
def test_a_bad_config_is_refused_on_one_line(case):
    text, says = case.split(" -> ")
    with pytest.raises((ConfigError, ModelError), match=says) as caught:
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
        TrainConfig(model=ModelChoice("diffusers", **{"path": "x", **fields}))


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
    config = TrainConfig(model=ModelChoice("mixture"), nfes=(4,), seed=3, budget=9, name="n")
    for name in PRESETS:
        changed = with_preset(config, name)
        kept = (changed.model, changed.nfes, changed.seed, changed.name)
        assert kept == (config.model, (4,), 3, "n")
        assert changed.budget == 0 and from_toml(to_toml(changed)) == changed
    alt = with_preset(config, "paper: S4S-Alt")
    assert alt.method == "s4s-alt" and alt.options["samples"] == 1400
    with pytest.raises(ConfigError, match="Unknown preset"):
        with_preset(config, "mad")


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


def test_the_command_line_changes_a_file(tmp_path):
    def parse(*arguments):
        parser = argparse.ArgumentParser()
        add_train_arguments(parser)
        return config_from_args(parser.parse_args(arguments))

    path = tmp_path / "config.toml"
    path.write_text(to_toml(FULL), encoding="utf-8")
    assert parse("--config", str(path)) == FULL
    changed = parse("--config", str(path), "--nfe", "6,5", "--init", "ipndm:3:edm", "--cfg", "2")
    assert changed.nfes == (5, 6) and changed.model.path == FULL.model.path
    assert changed.options == {**FULL.options, "init": "ipndm:3:edm"} and changed.model.cfg == 2.0
    other = parse("--model", "diffusers:/models/x", "--prompt", "a", "--prompt", "b")
    assert other.model.path == "/models/x" and other.model.prompts == ("a", "b")
    assert parse("--preset", "paper: S4S").method == "s4s" and parse() == TrainConfig()


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
