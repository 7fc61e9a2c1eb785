"""Command-line options that make a TrainConfig: of `train`, `estimate` and `jobs add`."""

from dataclasses import replace


def add_train_arguments(parser):
    """Options whose default None leaves things to the config file, or to TrainConfig."""
    from s4s_core.names import EFFORTS, METHODS, OBJECTIVES

    from .arguments import add_model_arguments
    from .presets import PRESETS

    efforts = ", ".join(f"{name} {calls:,}" for name, calls in EFFORTS.items())
    add = parser.add_argument
    add("--config", help="a TOML file to start from; the options below change it")
    add("--preset", metavar="NAME", help=", ".join(f"'{name}'" for name in PRESETS))
    add_model_arguments(parser)
    add("--name", help="what to call the solver (default: after the model)")
    add("--nfe", help="model calls, such as 5 or 4,5,6,8 (default: 5)")
    add("--effort", choices=EFFORTS, help=f"calls per NFE: {efforts} (default: normal)")
    add("--budget", type=int, help="model calls per NFE, instead of an effort")
    add("--method", choices=METHODS, help=f"default: {METHODS[0]}")
    add("--objective", choices=OBJECTIVES, help="default: l2")
    add("--teacher", help="auto (default), or solver:order:schedule:calls")
    add("--init", help="where to start: auto (default), or solver:order:schedule")
    add("--seed", type=int, help="default: 0")


def config_of(args):
    """The TrainConfig that the options ask for."""
    from .arguments import given, model_of, whole_numbers
    from .config import TrainConfig, read_config
    from .presets import with_preset

    config = read_config(args.config) if args.config else TrainConfig()
    if args.preset:
        config = with_preset(config, args.preset)
    keys = ("name", "effort", "budget", "method", "objective", "teacher", "seed")
    changes = given(args, keys) | {"model": model_of(args, config.model)}
    if args.nfe:
        changes["nfes"] = tuple(whole_numbers("--nfe", args.nfe))
    if args.init:
        changes["options"] = {**config.options, "init": args.init}
    return replace(config, **changes)
