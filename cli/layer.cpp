// SPDX-License-Identifier: Apache-2.0
#include "layer.hpp"

#include "convoy/info.hpp"

namespace convoy::cli {

std::string backend_line(const PlanInfo& info, Device asked) {
  std::string no_gpu;
  const bool wanted = asked == Device::automatic && info.backend.starts_with("cpu");
  if (!wanted || cuda_device_count(&no_gpu) > 0) return info.backend;
  return info.backend + ": " + no_gpu + ": running on the CPU";
}

Epilogue epilogue_of(const Layer& layer) {
  Epilogue epilogue = layer.epilogue;
  epilogue.bias = layer.bias ? layer.bias->bytes.data() : nullptr;
  epilogue.bias_dtype = DType::fp32;
  epilogue.residual = layer.residual ? layer.residual->bytes.data() : nullptr;
  return epilogue;
}

Plan plan_layer(const Layer& layer) {
  PlanOptions options = layer.options;
  options.packed_filter = !layer.dense_filter;
  options.epilogue = epilogue_of(layer).kind();
  if (layer.norm) options.prologue = layer.norm->kind();
  return plan(layer.problem, options);
}

namespace {

std::int64_t elements_of(const TensorShape& shape) {
  std::int64_t elements = 1;
  for (int i = 0; i < shape.rank(); ++i) elements *= shape.extents[std::size_t(i)];
  return elements;
}

}  // namespace

PreparedLayer::PreparedLayer(const Layer& layer, UploadedTensors* uploaded)
    : layer_(layer),
      geometry_(geometry_of(layer.problem)),
      plan_(plan_layer(layer)),
      device_(device_of(plan_)),
      filter_(on_device(layer.filter, uploaded)) {
  if (!layer.dense_filter) filter_ = plan_.pack_filter(filter_.data, layer.filter_layout);
  const std::int64_t output_bytes =
      elements_of(plan_.output_shape()) *
      std::int64_t(size_of(layer.options.output_dtype.value_or(layer.options.dtype)));
  output_ = DeviceMemory(device_, std::size_t(output_bytes));
  workspace_ = DeviceMemory(device_, plan_.workspace_bytes());
  arguments_.output = output_.data();
  arguments_.activation = on_device(layer.activation, uploaded);
  arguments_.filter = filter_;
  arguments_.epilogue = layer.epilogue;
  arguments_.epilogue.bias_dtype = DType::fp32;
  if (layer.bias) arguments_.epilogue.bias = on_device(*layer.bias, uploaded);
  if (layer.residual) arguments_.epilogue.residual = on_device(*layer.residual, uploaded);
  if (layer.cache) arguments_.cache = on_device(*layer.cache, uploaded);
  if (layer.norm) {
    norm_.emplace(*layer.norm, geometry_, layer.options.dtype, device_, arguments_.activation.data,
                  on_device(layer.norm->scale, uploaded), on_device(layer.norm->bias, uploaded));
    arguments_.prologue = norm_->prologue();
  }
  if (layer.wants_next_cache) {
    const std::int64_t elements = geometry_.batch * geometry_.next_cache_frames() *
                                  geometry_.in[1] * geometry_.in[2] * geometry_.in_channels;
    next_cache_ = DeviceMemory(device_, std::size_t(elements) * size_of(layer.options.dtype));
    arguments_.next_cache = next_cache_.data();
  }
  if (workspace_.bytes() > 0) arguments_.workspace = workspace_.data();
  synchronize(device_);
}

const void* PreparedLayer::on_device(const io::HostTensor& tensor, UploadedTensors* uploaded) {
  if (device_ == Device::cpu) return tensor.bytes.data();
  if (uploaded != nullptr) {
    const auto found = uploaded->find(&tensor);
    if (found != uploaded->end()) return memory_.emplace_back(found->second).data();
  }
  memory_.emplace_back(device_, tensor.bytes.size());
  memory_.back().upload(tensor.bytes.data(), tensor.bytes.size());
  if (uploaded != nullptr) uploaded->emplace(&tensor, memory_.back());
  return memory_.back().data();
}

io::HostTensor PreparedLayer::download_output() const {
  const TensorShape planned = plan_.output_shape();
  const std::vector<std::int64_t> shape(planned.extents.begin(),
                                        planned.extents.begin() + planned.rank());
  io::HostTensor output(layer_.options.output_dtype.value_or(layer_.options.dtype), shape);
  output_.download(output.bytes.data(), output.bytes.size());
  return output;
}

io::HostTensor PreparedLayer::download_next_cache() const {
  const ConvGeometry& g = geometry_;
  io::HostTensor cache(layer_.options.dtype,
                       {g.batch, g.next_cache_frames(), g.in[1], g.in[2], g.in_channels});
  next_cache_.download(cache.bytes.data(), cache.bytes.size());
  return cache;
}

LayerResult run_layer(const Layer& layer) {
  const PreparedLayer prepared(layer);
  const Variant variant{prepared.info().kernel, [&](cudaStream_t s) { prepared.enqueue(s); }};
  LayerResult result;
  result.info = prepared.info();
  result.filter_format = prepared.filter_format();
  result.time = measure_once(variant, prepared.device());
  constexpr double kShortUs = 1e5;
  if (result.time.median_us < kShortUs) {
    const MeasureOptions more{.device = prepared.device(), .seconds = 0.1, .max_runs = 50};
    result.time = measure({&variant, 1}, more)[0];
  }
  result.output = prepared.download_output();
  if (layer.wants_next_cache) result.next_cache = prepared.download_next_cache();
  return result;
}

}  // namespace convoy::cli
