"""A small double of ComfyUI for the tests, with just what the nodes use.

The checks of tests/helpers/comfyui_checks.py run on this and on the real ComfyUI alike.
"""
