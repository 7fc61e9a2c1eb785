from enum import Enum
from math import prod

import torch

from . import model_sampling as ms


class ModelType(Enum):
    EPS = 1
    EDM = 2
    FLOW = 3


_KINDS = {
    ModelType.EPS: (ms.ModelSamplingDiscrete, ms.EPS),
    ModelType.EDM: (ms.ModelSamplingContinuousEDM, ms.EDM),
    ModelType.FLOW: (ms.ModelSamplingDiscreteFlow, ms.CONST),
}


class BaseModel(torch.nn.Module):
    def __init__(self, model_config, model_type=ModelType.EPS):
        super().__init__()
        self.model_config, self.model_type = model_config, model_type
        self.latent_format = model_config.latent_format
        self.model_sampling = type("ModelSampling", _KINDS[model_type], {})(model_config)

    def apply_model(self, x, sigma, **conds):
        sampling = self.model_sampling
        point, time = sampling.calculate_input(sigma, x), sampling.timestep(sigma).float()
        out = self.diffusion_model(point, time, context=None, transformer_options={}, **conds)
        return sampling.calculate_denoised(sigma, out.float(), x)

    def scale_latent_inpaint(self, sigma, noise, latent_image, **_):
        wide = sigma.reshape([len(sigma)] + [1] * (noise.ndim - 1))
        return self.model_sampling.noise_scaling(wide, noise, latent_image)

    def process_latent_in(self, latent):
        return self.latent_format.process_in(latent)

    def process_latent_out(self, latent):
        return self.latent_format.process_out(latent)

    def memory_required(self, shape):
        return 4 * prod(shape) * self.model_config.memory_usage_factor

    def extra_conds(self, **_):
        return {}
