from functools import partial

from . import model_management
from .patcher_extension import WrappersMP


def prepare_sampling(model, noise_shape, conds, model_options=None):
    load = _prepare_sampling
    for wrappers in model.wrappers.get(WrappersMP.PREPARE_SAMPLING, {}).values():
        for wrapper in wrappers:
            load = partial(wrapper, load)
    return load(model, noise_shape, conds, model_options=model_options)


def _prepare_sampling(model, noise_shape, conds, model_options=None):
    asked = model.model.memory_required([2 * noise_shape[0], *noise_shape[1:]])
    model_management.load_models_gpu([model], memory_required=asked)
    return model.model, conds, []
