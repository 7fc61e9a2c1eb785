"""Command-line options that make a TrainConfig: of `train`, `estimate` and `jobs add`."""

from dataclasses import replace


def add_train_arguments(parser):
    """Options whose default None leaves things to the config file, or to TrainConfig."""
    from s4s_core.names import EFFORTS, METHODS, OBJECTIVES

    from .models.choice import MODELS
    from .presets import PRESETS

    efforts = ", ".join(f"{name} {calls:,}" for name, calls in EFFORTS.items())
    kinds = ", ".join(MODELS)
    add = parser.add_argument
    add("--config", help="a TOML file to start from; the options below change it")
    add("--preset", metavar="NAME", help=", ".join(f"'{name}'" for name in PRESETS))
    add("--model", metavar="KIND[:PATH]", help=f"{kinds} (default: demo)")
    add("--name", help="what to call the solver (default: after the model)")
    add("--nfe", help="model calls, such as 5 or 4,5,6,8 (default: 5)")
    add("--effort", choices=EFFORTS, help=f"calls per NFE: {efforts} (default: normal)")
    add("--budget", type=int, help="model calls per NFE, instead of an effort")
    add("--method", choices=METHODS, help=f"default: {METHODS[0]}")
    add("--objective", choices=OBJECTIVES, help="default: l2")
    add("--teacher", help="auto (default), or solver:order:schedule:calls")
    add("--init", help="where to start: auto (default), or solver:order:schedule")
    add("--seed", type=int, help="default: 0")
    add("--cfg", type=float, help="guidance (default: the model's)")
    add("--width", type=int, help="in pixels (default: the model's)")
    add("--height", type=int, help="in pixels (default: the model's)")
    add("--prompt", action="append", help="a prompt to learn from; may be repeated")
    add("--negative", help="the negative prompt")
    add("--device", help="such as cuda:1 or cpu (default: auto)")
    add("--dtype", help="float32, float16 or bfloat16 (default: auto)")
    add("--offload", action="store_true", default=None, help="keep most of the model off the GPU")
    add("--host", help="ComfyUI's folder, for the model kind comfyui")


def config_of(args):
    """The TrainConfig that the options ask for."""
    from .arguments import whole_numbers
    from .config import TrainConfig, read_config
    from .models.choice import ModelChoice
    from .presets import with_preset

    config = read_config(args.config) if args.config else TrainConfig()
    if args.preset:
        config = with_preset(config, args.preset)
    model = config.model
    if args.model:
        chosen = ModelChoice.parse(args.model)
        model = replace(model, kind=chosen.kind, path=chosen.path)
    keys = ("cfg", "width", "height", "negative", "device", "dtype", "offload", "host")
    model = replace(model, **_given(args, keys))
    if args.prompt:
        model = replace(model, prompts=tuple(args.prompt))
    keys = ("name", "effort", "budget", "method", "objective", "teacher", "seed")
    changes = _given(args, keys) | {"model": model}
    if args.nfe:
        changes["nfes"] = tuple(whole_numbers("--nfe", args.nfe))
    if args.init:
        changes["options"] = {**config.options, "init": args.init}
    return replace(config, **changes)


def _given(args, keys):
    return {key: getattr(args, key) for key in keys if getattr(args, key) is not None}
