"""S4S inside a Stable Diffusion WebUI: A1111 1.10, Forge, reForge, Forge Classic and Neo.

Nothing here asks for a host's name. All of these hosts keep samplers in `modules.sd_samplers`, and
where they differ (schedule types, the wrapped network, who moves weights) the code looks for what
it needs. `scripts/s4s_sampler.py` calls `register` whenever the host loads its scripts.
"""


def register():
    """Add the sampler, the schedule type, the tab and the X/Y/Z axis; again is as good as once."""
    from modules import script_callbacks

    from . import axis, choice, sampler, schedule, tab

    choice.register()
    sampler.register()
    schedule.register()
    script_callbacks.on_before_ui(axis.register)
    script_callbacks.on_ui_tabs(tab.tabs)
