import comfy.utils


def prepare_callback(model, steps, x0_output_dict=None):
    bar = comfy.utils.ProgressBar(steps)

    def callback(step, x0, x, total_steps):
        bar.update_absolute(step + 1, total_steps)

    return callback
