"""Print as JSON what others can rely on: python public_surface.py ROOT HOME SOLVERS.

ROOT is the checkout to look at, HOME a data folder with jobs, SOLVERS a folder of solver files. The
listing of version 0.1 in tests/fixtures/v0_1/surface.json was written by this script, and
test_compatibility.py compares today's with it. It looks from the outside wherever it can: it runs
`python -m trainer`, loads the node pack as ComfyUI does, and asks the registered routes.
"""

import argparse
import asyncio
import dataclasses
import importlib
import importlib.util
import inspect
import json
import os
import runpy
import sys
import types
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

PACK = "s4s_pack"


def plain(value):
    """A value as JSON; what has no JSON is shown as text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return f"<{getattr(value, '__name__', type(value).__name__)}>"


def shape(value):
    """The keys of an answer and the types of its values; of a list, the first entry's."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def ordered(values):
    """A list whose order matters, as a mapping; plain lists of names are compared as sets."""
    return {str(number): value for number, value in enumerate(values)}


# The library


def signature(function):
    """A function's parameters and their defaults, those that can be given by position in order."""
    every = inspect.signature(function).parameters.values()
    named = [each for each in every if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    return {
        "positional": ordered(each.name for each in named if each.kind != each.KEYWORD_ONLY),
        "parameters": {
            each.name: {} if each.default is each.empty else {"default": plain(each.default)}
            for each in named
        },
        "takes others": any(each.kind == each.VAR_KEYWORD for each in every),
    }


def members(value):
    """Names of an object's public members."""
    return sorted(name for name in dir(value) if name[0] != "_" and name not in dir(tuple))


class Model:
    """The smallest model there is, in `ve`."""

    space, sigma_min, sigma_max, shape = "ve", 0.01, 10.0, (3,)

    def denoise(self, x, sigma, cond=None):
        return (x / (1 + sigma.reshape(-1, 1).to(x) ** 2)).tanh()

    def conditions(self, batch, generator):
        return None


def library():
    core = importlib.import_module("s4s_core")
    errors = importlib.import_module("s4s_core.errors")
    found, functions, classes = [], {}, {}
    for name in core.__all__:
        value = getattr(core, name)
        if inspect.isclass(value):
            classes[name] = signature(value)
        else:
            functions[name] = signature(value)
    small = {"samples": 4, "validation": 4, "held_out": 4, "starts": 1}
    result = core.fit(Model(), 2, budget=2000, callback=found.append, **small)
    classes["Event"] = {"members": members(found[-1])}
    classes["Result"] = {"members": members(result), "scores": shape(result.scores)}
    classes["SolverTable"]["members"] = members(result.pack[2])
    classes["SolverPack"]["members"] = members(result.pack)
    classes["SolverPack"]["metadata"] = shape(dict(result.pack.metadata))
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    return {
        "all": list(core.__all__),
        "dir": [name for name in dir(core) if name in core.__all__],
        "functions": functions,
        "classes": classes,
        "errors": {
            kind.__name__: sorted(base.__name__ for base in kind.__mro__[1:-1]) for kind in kinds
        },
    }


def registries():
    names = importlib.import_module("s4s_core.names")
    table = importlib.import_module("s4s_core.table")
    settings = importlib.import_module("s4s_core.training.settings").Settings
    choice = importlib.import_module("trainer.models")
    config = importlib.import_module("trainer.config")
    return {
        "solvers": sorted(names.SOLVERS),
        "schedules": sorted(names.SCHEDULES),
        "methods": sorted(names.METHODS),
        "objectives": sorted(names.OBJECTIVES),
        "domains": sorted(names.DOMAINS),
        "families": sorted(table.FAMILIES),
        "efforts": dict(names.EFFORTS),
        "models": sorted(choice.MODELS),
        "dtypes": sorted(choice.DTYPES),
        "presets": {name: plain(preset.changes) for name, preset in config.PRESETS.items()},
        "fit options": {each.name: plain(each.default) for each in dataclasses.fields(settings)},
        "config": plain(config.TrainConfig().plain()),
        "config options": plain(config.OPTIONS),
    }


# The command line


class Captured(BaseException):
    """Carries the parser that was about to parse."""


def parser_of(*argv):
    """The parser that `python -m trainer ARGV` parses with."""

    def capture(self, *_args, **_options):
        raise Captured(self)

    capturing = mock.patch.object(argparse.ArgumentParser, "parse_args", capture)
    with capturing, mock.patch.object(sys, "argv", ["s4s", *argv]):
        try:
            runpy.run_module("trainer", run_name="__main__")
        except Captured as captured:
            return captured.args[0]
    raise AssertionError("nothing was parsed")


def arguments(parser):
    """Options and positional arguments of a parser, and those of its own commands."""
    options, positional, nested = {}, [], {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            nested = {name: arguments(each) for name, each in action.choices.items()}
            continue
        entry = {
            "takes": 0 if action.nargs == 0 else plain(action.nargs) or 1,
            "choices": sorted(map(str, action.choices)) if action.choices else None,
            "required": action.required,
        }
        if "--help" in action.option_strings or "--version" in action.option_strings:
            entry = {"takes": 0}
        else:
            entry["default"] = plain(action.default)
        for name in action.option_strings:
            options[name] = entry
        if not action.option_strings:
            positional.append({"name": action.dest, **entry})
    return {"options": options, "positional": ordered(positional), "commands": nested}


def commands():
    whole = parser_of("jobs")
    (chosen,) = (a for a in whole._actions if isinstance(a, argparse._SubParsersAction))
    found = {name: arguments(_command(parser_of(name), name)) for name in chosen.choices}
    return {"options": sorted(arguments(whole)["options"]), "commands": found}


def _command(parser, name):
    (chosen,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return chosen.choices[name]


# The WebUIs


def webui(root):
    """What the extension's script adds to a double of A1111."""
    import pytest

    (double,) = (root / "tests").rglob("webui_hosts.py")
    sys.path.insert(0, str(double.parent))
    hosts = importlib.import_module("webui_hosts")
    with pytest.MonkeyPatch.context() as patch:
        host = hosts.Double("a1111", patch)
        spec = importlib.util.spec_from_file_location(
            "s4s_sampler.py", root / "scripts" / "s4s_sampler.py"
        )
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        section = script.Section()
        samplers = [each for each in host.samplers.all_samplers if each.name != "Euler"]
        known = hosts.SCHEDULERS
        schedules = [each for each in host.schedulers.schedulers if each not in known]
        plot = types.SimpleNamespace(
            axis_options=[],
            AxisOption=lambda label, *_args, **_options: types.SimpleNamespace(label=label),
        )
        host.scripts.scripts_data = [types.SimpleNamespace(module=plot)]
        for action in host.before_ui:
            action()
        return {
            "samplers": [[each.name, each.aliases, each.options] for each in samplers],
            "schedules": [[each.name, each.label] for each in schedules],
            "section": section.title(),
            "axes": [option.label for option in plot.axis_options],
            **_generated(host, hosts, section),
        }


def _generated(host, hosts, section):
    """Infotext keys of a picture and of a hires pass, and what the section pastes back."""
    import gradio

    keys = set()
    for hires in (False, True):
        job = hosts.Job(4, is_hr_pass=hires)
        section.process(job, "multistep.safetensors")
        host.generate(job)
        keys |= set(job.extra_generation_params)
    with gradio.Blocks():
        section.ui(False)
    return {"infotext": sorted(keys), "pasted": section.paste_field_names}


# ComfyUI


def comfyui(root, home):
    """The nodes, stock names and routes of the pack, loaded as ComfyUI does into its double."""
    from aiohttp import web

    (double,) = (path.parent for path in (root / "tests").rglob("folder_paths.py"))
    sys.path.insert(0, str(double))
    os.environ["DOUBLE_BASE"] = str(home)
    server, routes = importlib.import_module("server"), web.RouteTableDef()
    server.PromptServer.instance = types.SimpleNamespace(
        routes=routes, add_on_prompt_handler=lambda handler: None, send_sync=lambda *_: None
    )
    samplers = importlib.import_module("comfy.samplers")
    before = [list(samplers.SAMPLER_NAMES), list(samplers.SCHEDULER_NAMES)]
    spec = importlib.util.spec_from_file_location(PACK, root / "__init__.py")
    pack = importlib.util.module_from_spec(spec)
    sys.modules[PACK] = pack
    spec.loader.exec_module(pack)
    added = [
        [name for name in names if name not in old]
        for names, old in zip(
            (samplers.SAMPLER_NAMES, samplers.SCHEDULER_NAMES), before, strict=True
        )
    ]
    titles = pack.NODE_DISPLAY_NAME_MAPPINGS
    return {
        "samplers": added[0],
        "schedulers": added[1],
        "web": bool(pack.WEB_DIRECTORY),
        "nodes": {key: node(titles[key], each) for key, each in pack.NODE_CLASS_MAPPINGS.items()},
        "routes": asyncio.run(answers(routes)),
    }


def node(title, kind):
    """What workflows and API clients know of a node."""
    inputs = {
        group: ordered({"name": name, **_input(entry)} for name, entry in entries.items())
        for group, entries in kind.INPUT_TYPES().items()
    }
    return {
        "title": title,
        "category": kind.CATEGORY,
        "is output": bool(getattr(kind, "OUTPUT_NODE", False)),
        "inputs": inputs,
        "outputs": ordered(kind.RETURN_TYPES),
        "output names": ordered(getattr(kind, "RETURN_NAMES", kind.RETURN_TYPES)),
    }


def _input(entry):
    """{type, choices, options} of one input; tooltips may change."""
    kind, *rest = (entry,) if isinstance(entry, str) else entry
    options = {k: plain(v) for each in rest for k, v in each.items() if k != "tooltip"}
    if isinstance(kind, list | tuple):
        return {"type": "COMBO", "choices": sorted(map(str, kind)), "options": options}
    return {"type": kind, "options": options}


ASKED = {
    "GET /s4s/solvers": "",
    "GET /s4s/table": "?file={file}&nfe={nfe}",
    "GET /s4s/thumbnail": "?file={file}",
    "GET /s4s/jobs": "",
    "GET /s4s/panel": "",
    "POST /s4s/jobs/cancel": {"id": "{job}"},
    "POST /s4s/panel": None,  # a foreign page's request, which is refused
}
"""What each route is asked; fields are filled in from earlier answers."""


async def answers(routes):
    """{route: {status, type, body}} of every route that is registered."""
    handlers = {f"{each.method} {each.path}": each.handler for each in routes}
    found, known = {}, {}
    for route, asked in ASKED.items():
        if route not in handlers:
            continue
        response = await handlers.pop(route)(request(route, asked, known))
        about = {"status": response.status, "type": response.content_type}
        if response.content_type == "application/json":
            body = json.loads(response.body)
            about["body"] = shape(body)
            _learn(known, route, body)
        found[route] = about
    return found | {route: {} for route in handlers}


def _learn(known, route, body):
    """Take what later requests name from an answer: a pictured solver, a job that is over."""
    if route == "GET /s4s/solvers":
        entry = next(each for each in body["solvers"] if each["thumbnail"])
        known |= {"file": entry["file"].replace(" ", "%20"), "nfe": entry["nfes"][0]}
    if route == "GET /s4s/jobs":
        known["job"] = next(view["id"] for view in body["jobs"] if view["status"] == "done")


def request(route, asked, known):
    """A request as the host's own page sends it; without a body, as a foreign page does."""
    from aiohttp.streams import StreamReader
    from aiohttp.test_utils import make_mocked_request

    method, path = route.split()
    headers, body = {"Host": "127.0.0.1:8188"}, b""
    if isinstance(asked, str):
        path += asked.format(**known)
    if isinstance(asked, dict):
        headers |= {"X-S4S": "1", "Origin": "http://127.0.0.1:8188"}
        body = json.dumps({key: text.format(**known) for key, text in asked.items()}).encode()
    protocol = mock.Mock(_reading_paused=False)
    payload = StreamReader(protocol, 2**16)
    payload.feed_data(body)
    payload.feed_eof()
    return make_mocked_request(method, path, headers=headers, payload=payload)


def main(root, home, solvers):
    root = Path(root).resolve()
    sys.path.insert(0, str(root))
    os.environ |= {"S4S_HOME": home, "S4S_SOLVERS": solvers}
    with redirect_stdout(sys.stderr):
        found = {
            "library": library(),
            "registries": registries(),
            "commands": commands(),
            "webui": webui(root),
            "comfyui": comfyui(root, home),
        }
    print(json.dumps(found, indent=1, sort_keys=True))


if __name__ == "__main__":
    main(*sys.argv[1:4])
