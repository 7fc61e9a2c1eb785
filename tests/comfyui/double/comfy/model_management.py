import torch

_interrupted = False


class InterruptProcessingException(Exception):
    pass


def interrupt_current_processing(value=True):
    global _interrupted
    _interrupted = value


def throw_exception_if_processing_interrupted():
    global _interrupted
    if _interrupted:
        _interrupted = False
        raise InterruptProcessingException()


def get_torch_device():
    return torch.device("cpu")


unet_offload_device = intermediate_device = get_torch_device


def get_free_memory(dev=None, torch_free_too=False):
    return 8 << 30


def extra_reserved_memory():
    return 400 << 20


def load_models_gpu(models, memory_required=0):
    pass


def soft_empty_cache():
    pass
