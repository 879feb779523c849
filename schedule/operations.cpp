#include "schedule/operations.hpp"

#include "core/overloaded.hpp"

namespace stepcast {
namespace {

constexpr Operation kUpdate{.span = SpanKind::kOptimizerAndCopies,
                            .workspace = MemoryCategory::kOptimizerState};
Operation computation(Phase phase) {
  switch (phase) {
    case Phase::kForward:
    case Phase::kRecompute:
    case Phase::kBackward:
    case Phase::kBackwardInput:
    case Phase::kBackwardWeight:
    case Phase::kLoss:
      return {};
    case Phase::kZeroGrad:
      return {.span = SpanKind::kOptimizerAndCopies};
    case Phase::kOptimizer:
      return kUpdate;
  }
  return {};
}

}  // namespace

Operation operation_of(const Action& action) {
  using Is = Operation;
  return std::visit(Overloaded{
                        [](const LoadInput&) { return Is{.span = SpanKind::kInputAndHost}; },
                        [](const Compute& compute) { return computation(compute.phase); },
                        [](const OneOf<CopyIn, CopyOut, Combine, ScaleUnit> auto&) {
                          return Is{.span = SpanKind::kOptimizerAndCopies,
                                    .time = TimeSource::kPass,
                                    .workspace = MemoryCategory::kCommunication};
                        },
                        [](const Collective&) {
                          return Is{.stream = Stream::kComm,
                                    .span = SpanKind::kCommunication,
                                    .time = TimeSource::kTransfer,
                                    .workspace = MemoryCategory::kCommunication};
                        },
                        [](const UnitMemory&) {
                          return Is{.span = SpanKind::kOptimizerAndCopies,
                                    .workspace = MemoryCategory::kCommunication};
                        },
                        [](const UpdateUnit&) { return kUpdate; },
                        [](const OneOf<Send, Recv> auto&) {
                          return Is{.stream = Stream::kComm,
                                    .span = SpanKind::kWait,
                                    .start = Start::kWhenReady,
                                    .time = TimeSource::kTransfer};
                        },
                        [](const Copy&) {
                          return Is{.stream = Stream::kCopy,
                                    .span = SpanKind::kOptimizerAndCopies,
                                    .start = Start::kLaunched,
                                    .time = TimeSource::kTransfer,
                                    .workspace = MemoryCategory::kCommunication};
                        },
                        [](const Synchronize& wait) {
                          return Is{.span = wait.exposed ? SpanKind::kCommunication : SpanKind::kWait,
                                    .time = TimeSource::kNothing,
                                    .workspace = MemoryCategory::kCommunication};
                        },
                    },
                    action);
}

Operation operation_of(const Op& op) {
  Operation result = operation_of(op.action);
  if (std::holds_alternative<Synchronize>(op.action) && op.stream == Stream::kComm) {
    result.stream = op.stream;
    result.span = SpanKind::kCommunication;
  }
  return result;
}

LocalPass local_pass(const Action& action, const Schedule& schedule, const Model& model) {
  const auto gradient = [&](int tensor) { return model.parameters[tensor].gradient; };
  return std::visit(
      Overloaded{
          [&](const CopyIn& copy) { return LocalPass{gradient(copy.tensor)}; },
          [&](const CopyOut& copy) { return LocalPass{schedule.buckets[copy.bucket].size}; },
          [&](const Combine& combine) {
            return LocalPass{gradient(combine.tensor), combine.inputs - 1};
          },
          [&](const ScaleUnit& scale) {
            const FsdpUnit& unit = schedule.units[scale.unit];
            if (scale.shard) return LocalPass{unit.gradient_shard()};
            // Converted for the way, they are read once more and written once more.
            const bool converted = unit.sharded && !unit.alone() && unit.reduced != unit.gradient;
            return LocalPass{unit.gradients() +
                             (converted ? 0.5 * (unit.gradients() + unit.message()) : Bytes(0))};
          },
          [](const OneOf<LoadInput, Compute, Collective, UnitMemory, UpdateUnit, Send, Recv, Copy,
                         Synchronize> auto&) { return LocalPass{}; },
      },
      action);
}

bool is_shift(const Op& op) {
  const auto* collective = std::get_if<Collective>(&op.action);
  return collective != nullptr && collective->kind == CollectiveKind::kShift;
}

int micro_batch_of(const Op& op) {
  const auto* compute = std::get_if<Compute>(&op.action);
  return compute == nullptr ? 0 : compute->micro_batch;
}

}  // namespace stepcast
