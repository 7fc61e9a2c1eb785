from .latent_formats import LatentFormat


class BASE:
    sampling_settings = {}
    latent_format = LatentFormat
    memory_usage_factor = 2.0

    def __init__(self, unet_config):
        self.unet_config = unet_config
        self.latent_format = self.latent_format()
