// SPDX-License-Identifier: Apache-2.0
#include "autoencoders.hpp"

#include <stdexcept>

namespace {

std::string at(const std::string& name, int index) {
  return name + "." + std::to_string(index);
}

// ---- FLUX.1, Stable Diffusion: AutoencoderKL ----------------------------------------------------

class ImageDecoder {
 public:
  ImageDecoder(Layers& layers, std::int64_t groups) : layers_(layers), groups_(groups) {}

  Tensor operator()(Tensor x) {
    const SafeTensors& weights = layers_.weights();
    if (weights.has("post_quant_conv.weight")) x = layers_.conv2d(x, "post_quant_conv");
    x = layers_.conv2d(x, "decoder.conv_in", {.pad = 1});
    x = resnet(x, "decoder.mid_block.resnets.0");
    const std::string attention = "decoder.mid_block.attentions.0";
    x = layers_.attention(layers_.group_norm(x, attention + ".group_norm", groups_, false),
                          {attention + ".to_q", attention + ".to_k", attention + ".to_v"},
                          attention + ".to_out.0", x);
    x = resnet(x, "decoder.mid_block.resnets.1");
    for (int i = 0; weights.has(at("decoder.up_blocks", i) + ".resnets.0.conv1.weight"); ++i) {
      const std::string block = at("decoder.up_blocks", i);
      for (int j = 0; weights.has(at(block + ".resnets", j) + ".conv1.weight"); ++j) {
        x = resnet(x, at(block + ".resnets", j));
      }
      if (weights.has(block + ".upsamplers.0.conv.weight")) {
        x = layers_.conv2d(x, block + ".upsamplers.0.conv", {.pad = 1, .upsample = 2});
      }
    }
    x = layers_.group_norm(x, "decoder.conv_norm_out", groups_, true);
    return layers_.conv2d(x, "decoder.conv_out", {.pad = 1});
  }

 private:
  Tensor resnet(const Tensor& x, const std::string& name) {
    Tensor h = layers_.group_norm(x, name + ".norm1", groups_, true);
    h = layers_.conv2d(h, name + ".conv1", {.pad = 1});
    h = layers_.group_norm(h, name + ".norm2", groups_, true);
    const bool has_shortcut = layers_.weights().has(name + ".conv_shortcut.weight");
    const Tensor shortcut = has_shortcut ? layers_.conv2d(x, name + ".conv_shortcut") : x;
    return layers_.conv2d(h, name + ".conv2", {.pad = 1, .residual = &shortcut});
  }

  Layers& layers_;
  std::int64_t groups_;
};

// ---- Wan 2.1, Qwen-Image: a frame of latents at a time ------------------------------------------

class VideoDecoder {
 public:
  explicit VideoDecoder(Layers& layers) : layers_(layers) {}

  Tensor operator()(const Tensor& latents) {
    Tensor none;
    const Tensor z = layers_.causal_conv3d(latents, "post_quant_conv", none);
    Tensor video;
    for (std::int64_t i = 0; i < z.frames; ++i) {
      Tensor frame = layers_.empty(1, z.height, z.width, z.channels);
      layers_.copy_frames(z, i, 1, frame, 0);
      video = layers_.joined(video, chunk(frame, i == 0));
    }
    return video;
  }

 private:
  Tensor chunk(Tensor x, bool is_first) {
    const SafeTensors& weights = layers_.weights();
    x = conv(x, "decoder.conv_in", 1);
    x = resnet(x, "decoder.mid_block.resnets.0");
    const std::string attention = "decoder.mid_block.attentions.0";
    x = layers_.attention(layers_.rms_norm(x, attention + ".norm", false), {attention + ".to_qkv"},
                          attention + ".proj", x);
    x = resnet(x, "decoder.mid_block.resnets.1");
    for (int i = 0; weights.has(at("decoder.up_blocks", i) + ".resnets.0.conv1.weight"); ++i) {
      const std::string block = at("decoder.up_blocks", i);
      for (int j = 0; weights.has(at(block + ".resnets", j) + ".conv1.weight"); ++j) {
        x = resnet(x, at(block + ".resnets", j));
      }
      const std::string up = block + ".upsamplers.0";
      // The first frame of all stays one.
      if (weights.has(up + ".time_conv.weight") && !is_first) {
        x = layers_.frames_from_channels(conv(x, up + ".time_conv", 0));
      }
      if (weights.has(up + ".resample.1.weight")) {
        x = layers_.conv2d(x, up + ".resample.1", {.pad = 1, .upsample = 2});
      }
    }
    return conv(layers_.rms_norm(x, "decoder.norm_out", true), "decoder.conv_out", 1);
  }

  Tensor resnet(const Tensor& x, const std::string& name) {
    const bool has_shortcut = layers_.weights().has(name + ".conv_shortcut.weight");
    const Tensor shortcut = has_shortcut ? conv(x, name + ".conv_shortcut", 0) : x;
    const Tensor h = conv(layers_.rms_norm(x, name + ".norm1", true), name + ".conv1", 1);
    return conv(layers_.rms_norm(h, name + ".norm2", true), name + ".conv2", 1, &shortcut);
  }

  Tensor conv(const Tensor& x, const std::string& name, std::int64_t pad,
              const Tensor* residual = nullptr) {
    return layers_.causal_conv3d(x, name, caches_[name], {.pad = pad, .residual = residual});
  }

  Layers& layers_;
  std::map<std::string, Tensor> caches_;
};

}  // namespace

std::string family_of(const SafeTensors& weights) {
  const std::string attention = "decoder.mid_block.attentions.0";
  if (weights.has(attention + ".to_q.weight")) return "flux";
  if (weights.has("decoder.up_blocks.0.upsampler.resample.1.weight")) {
    throw std::runtime_error("an autoencoder of Wan 2.2; legal: Wan 2.1's and FLUX.1's families");
  }
  if (weights.has(attention + ".to_qkv.weight")) return "wan";
  throw std::runtime_error("neither " + attention +
                           ".to_q.weight nor .to_qkv.weight is there; legal: an "
                           "autoencoder of diffusers of FLUX.1's or Wan 2.1's family");
}

Tensor decode(Layers& layers, const Array& latents, std::int64_t groups) {
  const SafeTensors& weights = layers.weights();
  const bool is_image = family_of(weights) == "flux";
  const std::string first =
      !is_image || weights.has("post_quant_conv.weight") ? "post_quant_conv" : "decoder.conv_in";
  const std::int64_t channels = weights.shape(first + ".weight").at(1);
  std::vector<std::int64_t> shape = latents.shape;
  if (!is_image && shape.size() == 4) shape.insert(shape.begin() + 2, 1);
  if (shape.size() != (is_image ? 4u : 5u) || shape[0] != 1 || shape[1] != channels) {
    throw std::runtime_error("latents have shape " + text_of(latents.shape) + "; legal: [1, " +
                             std::to_string(channels) + (is_image ? "" : ", frames") +
                             ", height, width]");
  }
  if (is_image) return ImageDecoder(layers, groups)(layers.upload(latents, true));
  const Array frames{{shape[1], shape[2], shape[3], shape[4]}, latents.values};
  return VideoDecoder(layers)(layers.upload(frames, false));
}
