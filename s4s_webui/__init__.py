"""S4S inside a Stable Diffusion WebUI: A1111 1.10, Forge, reForge, Forge Classic and Neo.

Nothing here asks for a host's name. All of these hosts keep samplers in `modules.sd_samplers`;
where they differ (schedule types, the wrapped network, memory management) the code looks for what
it needs. `scripts/s4s_sampler.py` calls `register` whenever the host loads its scripts.
"""


def register() -> None:
    """Add the sampler, the schedule type, the tab and the X/Y/Z axis; calling it again is safe."""
    from modules import script_callbacks

    from . import sampler, solver_choice, tab

    solver_choice.register()
    sampler.register()
    script_callbacks.on_before_ui(solver_choice.register_axis)
    script_callbacks.on_ui_tabs(tab.tabs)
