import torch

from . import samplers


def prepare_noise(latent_image, seed, noise_inds=None):
    return torch.randn(latent_image.shape, generator=torch.manual_seed(seed))


def fix_empty_latent_channels(model, latent_image):
    form = model.get_model_object("latent_format")
    if form.latent_channels != latent_image.shape[1] and not latent_image.count_nonzero():
        latent_image = latent_image[:, :1].repeat_interleave(form.latent_channels, 1)
    if form.latent_dimensions == 3 and latent_image.ndim == 4:
        latent_image = latent_image.unsqueeze(2)
    return latent_image


def sample(
    model,
    noise,
    steps,
    cfg,
    sampler_name,
    scheduler,
    positive,
    negative,
    latent_image,
    denoise=1.0,
    disable_noise=False,
    start_step=None,
    last_step=None,
    force_full_denoise=False,
    noise_mask=None,
    callback=None,
    disable_pbar=False,
    seed=None,
):
    chosen = samplers.KSampler(
        model, steps, model.load_device, sampler_name, scheduler, denoise, model.model_options
    )
    sampler = samplers.sampler_object(chosen.sampler)
    sigmas = chosen.piece(start_step, last_step, force_full_denoise)
    guided = cfg, sampler, sigmas, positive, negative, latent_image
    return sample_custom(model, noise, *guided, noise_mask, callback, disable_pbar, seed)


def sample_custom(
    model,
    noise,
    cfg,
    sampler,
    sigmas,
    positive,
    negative,
    latent_image,
    noise_mask=None,
    callback=None,
    disable_pbar=False,
    seed=None,
):
    guider = samplers.CFGGuider(model)
    guider.set_conds(positive, negative)
    guider.set_cfg(cfg)
    return guider.sample(
        noise, latent_image, sampler, sigmas, noise_mask, callback, disable_pbar, seed
    )
