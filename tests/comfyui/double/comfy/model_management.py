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


def get_total_memory(device=None):
    return 8 << 30


def soft_empty_cache():
    pass
