#include "schedule/operations.hpp"

#include "core/overloaded.hpp"

namespace stepcast {
namespace {

constexpr auto kBuffers = MemoryCategory::kCommunication;
constexpr Operation kUpdate{.span = SpanKind::kOptimizerAndCopies,
                            .workspace = MemoryCategory::kOptimizerState};
constexpr Operation kUnit{.span = SpanKind::kOptimizerAndCopies, .workspace = kBuffers};
constexpr Operation kPass{
    .span = SpanKind::kOptimizerAndCopies, .time = TimeSource::kPass, .workspace = kBuffers};
constexpr Operation kCollective{Stream::kComm, SpanKind::kCommunication, Start::kInTurn,
                                TimeSource::kTransfer, kBuffers};
constexpr Operation kMessage{Stream::kComm, SpanKind::kWait, Start::kWhenReady, TimeSource::kTransfer};
constexpr Operation kCopy{Stream::kCopy, SpanKind::kOptimizerAndCopies, Start::kLaunched,
                          TimeSource::kTransfer, kBuffers};

/// Copies to and from the own socket run beside compute; what they hold up is idle.
Operation copy_of(const Copy& copy) {
  Operation result = kCopy;
  if (copy.from.kind != copy.to.kind && copy.touches_socket()) result.span = SpanKind::kWait;
  return result;
}

Operation computation(Phase phase) {
  if (phase == Phase::kOptimizer) return kUpdate;
  return {.span = phase == Phase::kZeroGrad ? SpanKind::kOptimizerAndCopies : SpanKind::kCompute};
}

Operation synchronisation(const Synchronize& wait, bool on_comm) {
  return {.stream = on_comm ? Stream::kComm : Stream::kCompute,
          .span = wait.exposed || on_comm ? SpanKind::kCommunication : SpanKind::kWait,
          .time = TimeSource::kNothing,
          .workspace = kBuffers};
}

}  // namespace

Operation operation_of(const Op& op) {
  return std::visit(
      Overloaded{[](const LoadInput&) { return Operation{.span = SpanKind::kInputAndHost}; },
                 [](const Compute& compute) { return computation(compute.phase); },
                 [](const OneOf<CopyIn, CopyOut, Combine, ScaleUnit> auto&) { return kPass; },
                 [](const Collective&) { return kCollective; }, [](const UnitMemory&) { return kUnit; },
                 [](const UpdateUnit&) { return kUpdate; },
                 [](const OneOf<Send, Recv> auto&) { return kMessage; },
                 [](const Copy& copy) { return copy_of(copy); },
                 [&](const Synchronize& wait) { return synchronisation(wait, op.stream == Stream::kComm); }},
      op.action);
}

int append(Program& program, Op op) {
  op.stream = operation_of(op).stream;
  program.ops.push_back(std::move(op));
  return static_cast<int>(program.ops.size()) - 1;
}

LocalPass local_pass(const Action& action, const Schedule& schedule, const Model& model) {
  const auto gradient = [&](int tensor) { return model.parameters[tensor].accumulated(); };
  return std::visit(
      Overloaded{
          [&](const CopyIn& copy) {
            const bool nothing = schedule.buckets[copy.bucket].in_place && copy.scale == 1.0;
            return nothing ? LocalPass{} : LocalPass{gradient(copy.tensor)};
          },
          [&](const CopyOut& copy) {
            const Bucket& bucket = schedule.buckets[copy.bucket];
            return bucket.in_place ? LocalPass{} : LocalPass{bucket.size};
          },
          [&](const Combine& combine) {
            return LocalPass{gradient(combine.tensor), combine.inputs - 1};
          },
          [&](const ScaleUnit& scale) {
            const FsdpUnit& unit = schedule.units[scale.unit];
            if (scale.shard) return LocalPass{unit.gradient_shard(), scale.adds ? 1 : 0};
            // Converted for the way, they are read once more and written once more.
            const bool converted = unit.sharded && !unit.alone() && unit.message() != unit.accumulated();
            return LocalPass{unit.accumulated() +
                             (converted ? 0.5 * (unit.accumulated() + unit.message()) : Bytes(0))};
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
