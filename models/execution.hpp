#pragma once

#include <optional>
#include <string>
#include <vector>

/// Choices of a framework about the kernels of a model: which library computes them and how they are
/// launched.
namespace stepcast {

/// What layers compute does not depend on it. Conventions set it; `predict` has an option for each.
struct Execution {
  /// Kinds of fused attention in order of preference, joined by `+`.
  std::string attention = "flash2+aotriton";

  /// GEMMs of experts one after the other, on several streams, or in one kernel.
  std::string experts = "loop";
  std::string graph = "none";  ///< kernels that a CUDA graph launches: none, those of `layer`, or all

  std::string tensor_overlap = "none";
  std::string dispatch = "alltoall";      ///< of tokens to experts
  std::string dispatch_sms = "16";        ///< multiprocessors that a flexible dispatcher takes
  std::string dispatch_overlap = "none";  ///< what runs beside their all-to-alls

  std::string gradient_passes = "none";  ///< over the gradients before the optimizer
  std::string update = "fused";          ///< of Adam and SGD: one kernel, or one for each operation
  std::string gathered = "views";  ///< arrays of FSDP's units: in the buffers of its collectives, or copied

  std::string logits = "kept";  ///< until the backward of the head, or freed once the loss does not read them

  std::string recomputed = "whole";  ///< what recomputed blocks run again: all, or what the backward reads

  std::string reserved = "105";  ///< memory that PyTorch's allocator takes, percent of what it hands out
  std::string communicators = "none";  ///< of NCCL, besides those that the schedule uses

  bool operator==(const Execution&) const = default;
};

/// Its text is in commands/forecast.yaml.
struct ExecutionOption {
  std::string name;  ///< of `predict`, without dashes
  std::string Execution::*member;
  std::vector<std::string> known;  ///< values, or the parts of a list
  bool joins = false;              ///< several values, joined by `+`
};

const std::vector<ExecutionOption>& execution_options();

/// Sets the member of an option. \throws InputError that names the option and its known values
void set_execution(const ExecutionOption& option, const std::string& text, Execution& execution);

/// True if `choice` is one of the parts of a list.
bool has_choice(const std::string& list, const std::string& choice);

/// `attention cudnn+flash2`: what differs from the defaults; "" if nothing does.
std::string to_text(const Execution& execution);

/// Ranks of an NVLink domain that a flexible dispatcher knows; none of an all-to-all.
std::optional<int> nvlink_domain(const Execution& execution);

struct Model;
/// Sets the choices of a model and what follows for the launches of its kernels. \throws InputError for a
/// choice without effect
void apply(const Execution& execution, Model& model);

}  // namespace stepcast
