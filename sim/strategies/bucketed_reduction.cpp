#include "sim/strategies/bucketed_reduction.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/ranges.hpp"

namespace stepcast {
namespace {

constexpr const char* kFirstBucketCap = "1MiB";

/// Tensors with gradients that a rank reduces, in gradient-ready order, and the segments that use them.
std::vector<std::pair<int, int>> reduced_tensors(const Model& model, const std::vector<int>& segments,
                                                 const std::vector<int>& copies) {
  std::vector<std::pair<int, int>> order;
  std::vector<int> left = copies;
  const auto add_copies = [&](int from_segment) {
    std::erase_if(left, [&](int tensor) {
      for (const int user : segments)
        if (user >= from_segment && contains(model.segments[user].tied, tensor)) {
          order.emplace_back(tensor, user);
          return true;
        }
      return false;
    });
  };
  for (const int tensor : model.ready_order()) {
    const int segment = model.parameters[tensor].segment;
    if (!contains(segments, segment)) continue;
    add_copies(segment);
    order.emplace_back(tensor, segment);
  }
  add_copies(0);
  return order;
}

}  // namespace

BucketLimits bucket_limits(StrategyOptions& options) {
  if (options.text("framework") == "torch-1" && !options.given("first-bucket-cap"))
    options.settle("first-bucket-cap", kFirstBucketCap);
  options.drop({"framework"});
  return {options.bytes("first-bucket-cap"), options.bytes("bucket-cap"), options.text("compress") == "fp16",
          options.text("reduce-when") == "waited"};
}

std::vector<Bucket> assign_buckets(const Model& model, const std::vector<int>& segments, Bytes first_cap,
                                   Bytes cap, const std::vector<int>& copies,
                                   const std::vector<int>& separate) {
  std::vector<Bucket> buckets;
  struct {
    Bucket bucket;
    bool is_first = true;
  } open[2];  // of experts' gradients, and of all others
  const auto close = [&] {
    for (auto& [bucket, is_first] : open)  // the embedding's gradient comes last
      if (!bucket.tensors.empty()) buckets.push_back(std::exchange(bucket, {}));
  };
  const auto begin_of_chunk = [&](int segment) {
    while (contains(segments, segment - 1)) --segment;
    return segment;
  };
  int chunk = 0;
  for (const auto& [tensor, segment] : reduced_tensors(model, segments, copies)) {
    const Parameter& parameter = model.parameters[tensor];
    if (const int own = begin_of_chunk(segment); model.transformer_engine() && own != chunk) {
      close();
      chunk = own;
    }
    if (contains(separate, tensor)) {
      buckets.push_back({{tensor}, parameter.reduced});
      continue;
    }
    auto& [bucket, is_first] = open[parameter.expert ? 0 : 1];
    bucket.tensors.push_back(tensor);
    bucket.size += parameter.reduced;
    if (chunk > 0 || bucket.size < (is_first ? first_cap : cap)) continue;
    buckets.push_back(std::exchange(bucket, {}));
    is_first = false;
  }
  close();
  return buckets;
}

BucketedReduction::BucketedReduction(LocalStep& step, Schedule& schedule, const BucketLimits& limits,
                                     int group, int ranks)
    : step_(step),
      schedule_(schedule),
      group_(group),
      ranks_(ranks),
      waits_(limits.waits),
      in_place_(step.model().transformer_engine() &&
                step.model().precision.gradients == step.model().precision.reduction),
      first_(schedule.buckets.size()),
      bucket_of_(step.model().parameters.size()) {
  const std::string& reduction = step.model().precision.reduction;
  if (limits.half && reduction != "fp32")
    throw UsageError(
        "--compress fp16 halves gradients that are reduced in fp32; --precision has them reduced in {}",
        reduction);
  for (Bucket& bucket :
       assign_buckets(step.model(), step.segments(), limits.first_cap, limits.cap, step.copies())) {
    bucket.half = limits.half;
    bucket.in_place = in_place_;
    for (const int tensor : bucket.tensors) bucket_of_[tensor] = schedule.buckets.size();
    if (!in_place_) step.hold(MemoryCategory::kCommunication, bucket.message());
    schedule.buckets.push_back(std::move(bucket));
  }
  pending_.resize(schedule.buckets.size() - first_);
}

int BucketedReduction::backward(int segment, int micro_batch, std::vector<int> after, Phase phase) {
  const int backward = step_.backward(segment, micro_batch, std::move(after), phase);
  for (const int tensor : step_.model().segments[segment].parameters) copy_in(tensor, backward, true);
  for (const int tensor : step_.copies(segment)) copy_in(tensor, backward, false);
  return backward;
}

/// Copies one gradient and launches the bucket that it completes.
void BucketedReduction::copy_in(int tensor, int backward, bool hook) {
  const Parameter& parameter = step_.model().parameters[tensor];
  const std::size_t number = bucket_of_[tensor];
  std::vector<int>& pending = pending_[number - first_];
  const Bucket& bucket = schedule_.buckets[number];
  const auto index = static_cast<int>(number);
  Bytes traffic = parameter.accumulated() + (bucket.half ? 0.5 : 1.0) * parameter.reduced;
  if (in_place_ && ranks_ == 1) traffic = {};
  pending.push_back(step_.add({.name = "copy_in/" + parameter.name,
                               .action = CopyIn{.bucket = index, .tensor = tensor, .scale = 1.0 / ranks_},
                               .within = hook ? backward : -1,
                               .ready_tensor = hook ? tensor : -1,
                               .memory_traffic = traffic}));
  if (!waits_ && pending.size() == bucket.tensors.size()) reduce(number);
}

void BucketedReduction::reduce(std::size_t number) {
  const Bucket& bucket = schedule_.buckets[number];
  if (step_.model().replicas(step_.model().parameters[bucket.tensors.front()], ranks_) == 1) return;
  std::vector<int>& pending = pending_[number - first_];
  const Collective call{CollectiveKind::kAllReduce, bucket.message(), group_, 0,
                        BucketArray{static_cast<int>(number)}};
  pending = {step_.add_collective("all_reduce/bucket" + std::to_string(number), call,
                                  waits_ ? step_.latest() : pending)};
}

void BucketedReduction::copy_out() {
  for (std::size_t own = 0; own < pending_.size(); ++own) {
    const std::size_t number = first_ + own;
    const Bucket& bucket = schedule_.buckets[number];
    if (waits_) reduce(number);
    step_.add({.name = "copy_out/bucket" + std::to_string(number),
               .action = CopyOut{.bucket = static_cast<int>(number)},
               .after = pending_[own],
               .memory_traffic = in_place_ ? Bytes(0) : (bucket.half ? 1.5 : 2.0) * bucket.size});
  }
}

}  // namespace stepcast
