#include "sim/strategies/bucketed_reduction.hpp"

#include <string>
#include <utility>

#include "sim/strategies/buckets.hpp"

namespace stepcast {

BucketedReduction::BucketedReduction(LocalStep& step, Schedule& schedule, const TrainingConfig& config,
                                     int group, int ranks)
    : step_(step),
      schedule_(schedule),
      group_(group),
      ranks_(ranks),
      first_(schedule.buckets.size()),
      bucket_of_(step.model().parameters.size()) {
  require_one_of("compress", config.compress, {"none", "fp16"});
  for (Bucket& bucket :
       assign_buckets(step.model(), step.segments(), config.first_bucket_cap, config.bucket_cap)) {
    bucket.half = config.compress == "fp16";
    for (const int tensor : bucket.tensors)
      bucket_of_[static_cast<std::size_t>(tensor)] = schedule.buckets.size();
    step.hold(MemoryCategory::kCommunication, bucket.message());
    schedule.buckets.push_back(std::move(bucket));
  }
  copied_in_.resize(schedule.buckets.size() - first_);
  reduced_.resize(schedule.buckets.size() - first_);
}

int BucketedReduction::backward(int segment, int micro_batch, std::vector<int> after) {
  const int backward = step_.backward(segment, micro_batch, std::move(after));
  for (const int tensor : step_.model().segments[static_cast<std::size_t>(segment)].parameters)
    copy_in(tensor, backward);
  return backward;
}

/// The hook of one gradient; launches the bucket that it fills.
void BucketedReduction::copy_in(int tensor, int backward) {
  const Parameter& parameter = step_.model().parameters[static_cast<std::size_t>(tensor)];
  const std::size_t number = bucket_of_[static_cast<std::size_t>(tensor)];
  const std::size_t own = number - first_;
  const Bucket& bucket = schedule_.buckets[number];
  Op op;
  op.name = "copy_in/" + parameter.name;
  op.action = CopyIn{.bucket = static_cast<int>(number), .tensor = tensor, .scale = 1.0 / ranks_};
  op.within = backward;
  op.ready_tensor = tensor;
  op.memory_traffic = (bucket.half ? 1.5 : 2.0) * parameter.size;
  copied_in_[own].push_back(step_.add(std::move(op)));
  if (copied_in_[own].size() < bucket.tensors.size()) return;
  reduced_[own] = copied_in_[own];
  if (ranks_ == 1) return;
  reduced_[own] = {step_.add_collective("all_reduce/bucket" + std::to_string(number),
                                        {.kind = CollectiveKind::kAllReduce,
                                         .message = bucket.message(),
                                         .group = group_,
                                         .payload = {Payload::What::kBucket, static_cast<int>(number)}},
                                        copied_in_[own])};
}

void BucketedReduction::copy_out() {
  for (std::size_t own = 0; own < reduced_.size(); ++own) {
    const std::size_t number = first_ + own;
    Op op;
    op.name = "copy_out/bucket" + std::to_string(number);
    op.action = CopyOut{.bucket = static_cast<int>(number)};
    op.after = reduced_[own];
    op.memory_traffic = (schedule_.buckets[number].half ? 1.5 : 2.0) * schedule_.buckets[number].size;
    step_.add(std::move(op));
  }
}

}  // namespace stepcast
