class LatentFormat:
    latent_channels = 4
    latent_dimensions = 2
    latent_rgb_factors = None
    latent_rgb_factors_bias = None

    def process_in(self, latent):
        return latent

    def process_out(self, latent):
        return latent


class ChromaRadiance(LatentFormat):
    latent_channels = 3
    latent_rgb_factors = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
