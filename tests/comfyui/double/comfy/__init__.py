"""A small double of ComfyUI: just what the nodes touch, written for the tests.

The same checks (tests/comfyui_checks.py) run on this and on the real ComfyUI, so it cannot drift.
"""
