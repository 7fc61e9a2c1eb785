"""Ready-made answers to "how hard shall it try": changes to a TrainConfig, by name. No torch."""

from dataclasses import dataclass, replace

from s4s_core.errors import ConfigError


@dataclass(frozen=True)
class Preset:
    """What a preset is for, and the fields of a TrainConfig that it sets."""

    help: str
    changes: dict


PRESETS = {
    "quick": Preset("a first look: 6,000 model calls per NFE", {"effort": "quick"}),
    "normal": Preset("the usual choice: 20,000 model calls per NFE", {"effort": "normal"}),
    "thorough": Preset(
        "more pairs and starts: 60,000 model calls per NFE",
        {"effort": "thorough", "options": {"samples": 96, "starts": 4}},
    ),
    "paper: S4S": Preset(
        "coefficients by gradient, as the paper does: 700 pairs, 10 epochs, LPIPS; hours",
        {
            "method": "s4s",
            "objective": "lpips-alex",
            "teacher": "unipc-bh2:3:logsnr:20",
            "options": {"samples": 700, "validation": 200, "epochs": 10},
        },
    ),
    "paper: S4S-Alt": Preset(
        "times and coefficients in turn, as the paper does: 1,400 pairs, 8 rounds, LPIPS; a day",
        {
            "method": "s4s-alt",
            "objective": "lpips-alex",
            "teacher": "unipc-bh2:3:logsnr:20",
            "options": {"samples": 1400, "validation": 400, "epochs": 10},
        },
    ),
}


def with_preset(config, name):
    """The config under a preset: its model, name, NFEs and seed stay, the rest is the preset's."""
    if name not in PRESETS:
        raise ConfigError(f"Unknown preset '{name}': choose one of {', '.join(PRESETS)}.")
    fresh = type(config)(model=config.model, name=config.name, nfes=config.nfes, seed=config.seed)
    return replace(fresh, **PRESETS[name].changes)
