// A GPU for torch that is the CPU: tensors say that they are on cuda:0, and each operation runs on the host's memory.
// What a GPU does not do is refused: tensors of both mixed, pinned memory touched too early, and what cannot be
// recorded in a graph.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <optional>
#include <set>

#include "memory.h"
#include "stream.h"

namespace emulated {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

// ---- the device as torch asks for it

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// ---- the same memory on either side

bool is_on_device(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == c10::kCUDA; }

Tensor shaped_like(const Tensor& like, c10::Storage storage, c10::DispatchKey key) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

Tensor view_of(const Tensor& base, const Tensor& like) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

Tensor on_host(const Tensor& tensor) {
  auto* kept = new c10::Storage(tensor.storage());
  c10::DataPtr data(
      kept->mutable_data(), kept, [](void* context) { delete static_cast<c10::Storage*>(context); },
      c10::Device(c10::kCPU));
  // An operation that gives an output its size may need more.
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), kept->nbytes(), std::move(data), c10::GetCPUAllocator(), /*resizable=*/true);
  return shaped_like(tensor, std::move(storage), c10::DispatchKey::CPU);
}

Tensor on_device(const Tensor& tensor) {
  auto* kept = new c10::Storage(tensor.storage());
  ledger().add(static_cast<int64_t>(kept->nbytes()));
  c10::DataPtr data(
      kept->mutable_data(), kept,
      [](void* context) {
        auto* own = static_cast<c10::Storage*>(context);
        ledger().add(-static_cast<int64_t>(own->nbytes()));
        delete own;
      },
      DEVICE);
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), kept->nbytes(), std::move(data), &device_memory, /*resizable=*/false);
  return shaped_like(tensor, std::move(storage), c10::DispatchKey::CUDA);
}

// ---- operations

const std::set<std::string> WAITING = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive",  "aten::equal",   "aten::bincount",      "aten::histc"};

// One operation's arguments for the host, and its results for the device.
class Translation {
 public:
  bool mixes = false;  // tensors of both, but for numbers
  bool masks = false;  // indices are where something holds, which the host has to know

  IValue to_host(const IValue& value) {
    if (value.isTensor()) return to_host(value.toTensor());
    if (value.isDevice()) return value.toDevice().type() == c10::kCUDA ? IValue(c10::Device(c10::kCPU)) : value;
    if (value.isTensorList()) {
      c10::List<Tensor> found;
      for (const Tensor& each : value.toTensorList()) found.push_back(to_host(each));
      return found;
    }
    if (!value.isOptionalTensorList()) return value;
    c10::List<std::optional<Tensor>> found;
    for (const std::optional<Tensor>& each : value.toOptionalTensorList()) {
      masks |= each && each->defined() && (each->scalar_type() == at::kBool || each->scalar_type() == at::kByte);
      found.push_back(each ? std::optional<Tensor>(to_host(*each)) : std::nullopt);
    }
    return found;
  }

  IValue to_device(const IValue& value) {
    if (value.isTensor()) return to_device(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> found;
    for (const Tensor& each : value.toTensorList()) found.push_back(to_device(each));
    return found;
  }

  // Whether a result is no view of an argument.
  bool is_new(const Tensor& result) const {
    return result.defined() && std::none_of(pairs_.begin(), pairs_.end(), [&](const auto& pair) {
      return pair.second.storage().is_alias_of(result.storage());
    });
  }

 private:
  Tensor to_host(const Tensor& tensor) {
    if (!is_on_device(tensor)) {
      mixes |= tensor.defined() && tensor.dim() > 0;
      return tensor;
    }
    for (const auto& [device, host] : pairs_)
      if (device.is_same(tensor)) return host;
    pairs_.emplace_back(tensor, on_host(tensor));
    return pairs_.back().second;
  }

  Tensor to_device(const Tensor& result) {
    if (!result.defined()) return result;
    for (const auto& [device, host] : pairs_) {
      if (!host.is_same(result)) continue;
      c10::TensorImpl* own = device.unsafeGetTensorImpl();
      if (host.storage().data() != device.storage().data())
        own->set_storage_keep_dtype(on_device(host).storage());
      own->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
      return device;
    }
    for (const auto& [device, host] : pairs_)
      if (host.storage().is_alias_of(result.storage())) return view_of(device, result);
    return on_device(result);
  }

  std::vector<std::pair<Tensor, Tensor>> pairs_;  // the device's, the host's
};

void call_on_host(const c10::OperatorHandle& op, Stack& stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  op.callBoxed(&stack);
}

void record(const c10::OperatorHandle& op, const Stack& arguments, const Stack& results, const Translation& known) {
  std::vector<std::pair<size_t, Tensor>> made;
  for (size_t index = 0; index < results.size(); ++index)
    if (results[index].isTensor() && known.is_new(results[index].toTensor()))
      made.emplace_back(index, results[index].toTensor());
  Stream::recording_->steps.push_back({[op, arguments, made] {
    Stack again = arguments;
    call_on_host(op, again);
    for (const auto& [index, target] : made) target.copy_(again[index].toTensor());
  }});
}

void run(const c10::OperatorHandle& op, Stack* stack) {
  const std::string& name = op.schema().name();
  const size_t count = op.schema().arguments().size();
  Translation translation;
  Stack values;
  for (const IValue& each : torch::jit::last(*stack, count)) values.push_back(translation.to_host(each));
  const bool indexes = name.rfind("aten::index", 0) == 0 || name.rfind("aten::_index_put", 0) == 0;
  TORCH_CHECK(
      !translation.mixes || indexes,
      "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (", name, ")");
  if (WAITING.count(name) || (indexes && (translation.mixes || translation.masks))) stream().wait(name);
  torch::jit::drop(*stack, count);
  const Stack arguments = values;
  call_on_host(op, values);
  if (Stream::recording_) record(op, arguments, values, translation);
  for (const IValue& each : values) stack->push_back(translation.to_device(each));
}

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&run>()); }

using Type = std::optional<c10::ScalarType>;
using Layout = std::optional<c10::Layout>;
using Device = std::optional<c10::Device>;
using Pinned = std::optional<bool>;
using Format = std::optional<c10::MemoryFormat>;

const c10::DispatchKeySet ON_DEVICE(c10::DispatchKey::CUDA), ON_HOST(c10::DispatchKey::CPU);

c10::ScalarType type_of(Type type) { return type.value_or(c10::get_default_dtype_as_scalartype()); }

Tensor empty(c10::IntArrayRef size, Type type, Layout, Device, Pinned, Format format) {
  return at::detail::empty_generic(size, &device_memory, ON_DEVICE, type_of(type), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, Type type, Layout, Device, Pinned) {
  return at::detail::empty_strided_generic(size, stride, &device_memory, ON_DEVICE, type_of(type));
}

void copy_at_once(const Tensor& target, const Tensor& source) {
  at::AutoDispatchBelowADInplaceOrView below;
  target.copy_(source);
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  const bool leaves = is_on_device(source), arrives = is_on_device(self);
  const Tensor target = arrives ? on_host(self) : self, content = leaves ? on_host(source) : source;
  const Tensor& host = arrives ? content : target;
  const bool is_within = leaves && arrives;
  const bool is_late = !is_within && non_blocking && host.numel() > 0 && ledger().is_pinned(host.const_data_ptr());
  if (!is_within && !is_late && host.numel() > 0) {
    // What fills a tensor with a number of the host's is a launch.
    if (leaves || host.dim() > 0) stream().wait(leaves ? "a copy to the host" : "a copy to the device");
  }
  if (Stream::recording_) {
    Stream::recording_->steps.push_back({[target, content] { copy_at_once(target, content); }});
    copy_at_once(target, content);
  } else if (is_late && leaves) {
    stream().leaves(target, content.clone());
    if (target.is_contiguous()) std::memset(target.mutable_data_ptr(), UNWRITTEN, target.nbytes());
  } else {
    copy_at_once(target, content);
    if (is_late && content.is_contiguous()) stream().arrives(content);
  }
  return self;
}

void record_stream(Tensor&, c10::Stream) {}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("copy_", TORCH_FN(copy_));
  library.impl("record_stream", TORCH_FN(record_stream));
}

// ---- pinned memory, which a torch without CUDA does not have

Tensor host_empty(c10::IntArrayRef size, Type type, Layout layout, Device device, Pinned pinned, Format format) {
  return pinned.value_or(false) ? at::detail::empty_generic(size, &pinned_memory, ON_HOST, type_of(type), format)
                                : at::detail::empty_cpu(size, type, layout, device, pinned, format);
}

Tensor host_empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, Type type, Layout layout, Device device, Pinned pinned) {
  return pinned.value_or(false)
      ? at::detail::empty_strided_generic(size, stride, &pinned_memory, ON_HOST, type_of(type))
      : at::detail::empty_strided_cpu(size, stride, type, layout, device, pinned);
}

bool is_pinned(const Tensor& tensor, Device) { return ledger().is_pinned(tensor.storage().data()); }

Tensor pin_memory(const Tensor& tensor, Device) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().pinned_memory(true)).copy_(tensor);
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("empty.memory_format", TORCH_FN(host_empty));
  library.impl("empty_strided", TORCH_FN(host_empty_strided));
  library.impl("is_pinned", TORCH_FN(is_pinned));
  library.impl("_pin_memory", TORCH_FN(pin_memory));
}

// ---- what torch.cuda's stand-ins in Python ask for

Tensor host_alias(const Tensor& tensor) { return is_on_device(tensor) ? on_host(tensor) : tensor; }

// Goes on at a step of a graph, to the next kernel of Python's: its number and the step behind it; -1 at the end.
std::vector<int64_t> replay(int64_t number, int64_t position) {
  c10::InferenceMode infers;
  const std::shared_ptr<Graph> graph = stream().graphs.at(number);
  for (size_t index = position; index < graph->steps.size(); ++index) {
    const Graph::Step& step = graph->steps[index];
    if (step.kernel >= 0) return {step.kernel, static_cast<int64_t>(index) + 1};
    step.run();
  }
  return {-1, 0};
}

}  // namespace

TORCH_LIBRARY(emulated_gpu, library) {
  library.def("host_alias(Tensor(a) tensor) -> Tensor(a)");
  library.impl("host_alias", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(host_alias));
  library.def("moment", [] { return stream().moment(); });
  library.def("past", [](int64_t moment) { return stream().past(moment); });
  library.def("forbid_waits", [](bool whether) { stream().forbid_waits(whether); });
  library.def("begin_graph", [](int64_t number) {
    Stream::recording_ = stream().graphs[number] = std::make_shared<Graph>();
  });
  library.def("end_graph", [] { Stream::recording_.reset(); });
  library.def("drop_graph", [](int64_t number) { stream().graphs.erase(number); });
  library.def("is_recording", [] { return static_cast<bool>(Stream::recording_); });
  library.def("record_kernel", [](int64_t number) { Stream::recording_->steps.push_back({nullptr, number}); });
  library.def("replay", replay);
  library.def("held_bytes", [] { return ledger().held(); });
  library.def("peak_bytes", [] { return ledger().peak(); });
  library.def("reset_peak", [] { ledger().reset_peak(); });
  library.def("pin", [](int64_t address, int64_t bytes) {
    ledger().pin(reinterpret_cast<const void*>(address), static_cast<size_t>(bytes));
  });
  library.def("unpin", [](int64_t address) { ledger().unpin(reinterpret_cast<const void*>(address)); });
}

}  // namespace emulated
