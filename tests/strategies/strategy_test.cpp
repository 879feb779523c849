#include "sim/strategies/strategy.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/overloaded.hpp"
#include "models/model.hpp"
#include "schedule/operations.hpp"
#include "sim/strategies/bucketed_reduction.hpp"
#include "tests/models/reference_files.hpp"
#include "tests/worlds.hpp"

namespace stepcast::strategy_test {
using namespace worlds;

namespace {

/// The tensors that a collective works on.
std::vector<int> tensors_of(const Schedule& schedule, const Payload& payload) {
  return std::visit(
      Overloaded{
          [](const GradientArray& gradient) { return std::vector<int>{gradient.tensor}; },
          [&](const BucketArray& array) {
            return schedule.buckets[static_cast<std::size_t>(array.bucket)].tensors;
          },
          [&](const UnitGradients& array) {
            if (array.shard) return std::vector<int>{};  // reduced before, among the ranks of one copy
            return schedule.units[static_cast<std::size_t>(array.unit)].tensors;
          },
          // parameters, buffers and activations, not gradients
          [](const OneOf<UnitParameters, BufferArray, ExchangeArray> auto&) { return std::vector<int>{}; },
      },
      payload);
}

/// How often each tensor's gradient is reduced over the ranks: by an all-reduce or reduce-scatter of it, its
/// bucket or its unit, or by gathers.
std::map<int, int> reductions_of(const Schedule& schedule, const Program& program) {
  std::map<int, int> count;
  for (const Op& op : program.ops) {
    const auto* call = std::get_if<Collective>(&op.action);
    if (call == nullptr) continue;
    if (call->kind == CollectiveKind::kScatter) continue;  // hands back what the gather reduced
    for (const int tensor : tensors_of(schedule, call->payload)) ++count[tensor];
  }
  return count;
}

/// Bytes of one rank's gradients that collectives of `kind` work on: message for reductions, message / n
/// where every rank contributes one n-th.
double gradient_bytes(const Schedule& schedule, const Program& program, CollectiveKind kind) {
  double total = 0.0;
  const bool reduces = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
  for (const Op& op : program.ops) {
    const auto* call = std::get_if<Collective>(&op.action);
    if (call == nullptr || call->kind != kind) continue;
    total += reduces ? call->message.count() : call->message.count() / schedule.world_size;
  }
  return total;
}

/// Segments of one phase in the order of the program.
std::vector<int> segments_of(const Program& program, Phase phase) {
  std::vector<int> segments;
  for (const Op& op : program.ops)
    if (const auto* compute = std::get_if<Compute>(&op.action); compute != nullptr && compute->phase == phase)
      segments.push_back(compute->segment);
  return segments;
}

bool trains(const std::string& strategy) { return strategies().find(strategy).trains; }

bool has_collectives(const Schedule& schedule) {
  for (const Program& program : schedule.programs)
    for (const Op& op : program.ops)
      if (std::holds_alternative<Collective>(op.action)) return true;
  return false;
}

}  // namespace

TEST_CASE(
    "every strategy that trains runs each segment once forward and once backward, backward in reverse, "
    "optimizer last") {
  const auto strategy = GENERATE(from_range(strategies().names()));
  const auto model_name = GENERATE(from_range(resource_names("models", ".yaml")));
  const int world_size = GENERATE(1, 2, 4);
  if ((strategy == "single" && world_size > 1) || !trains(strategy)) return;
  const Model& model = shipped(model_name);
  if (strategy == "pipeline" && static_cast<int>(model.segments.size()) < world_size) return;
  CAPTURE(strategy, model_name, world_size);
  const Schedule schedule = build_schedule(strategy, model, training(world_size, 32));
  CHECK_NOTHROW(validate(schedule));
  std::map<int, std::multiset<int>> done;  // segments, by batch
  for (int rank = 0; rank < world_size; ++rank) {
    const Program& program = schedule.program(rank);
    CHECK(segments_of(program, Phase::kForward) == program.segments);
    CHECK(segments_of(program, Phase::kBackward) ==
          std::vector<int>(program.segments.rbegin(), program.segments.rend()));
    done[schedule.data_index_of(rank)].insert(program.segments.begin(), program.segments.end());
    const bool has_optimizer = model.optimizer.kind != "none";
    CHECK(program.ops.back().name.starts_with("optimizer") == has_optimizer);
    const bool has_ends = program.segments.front() == 0 ||
                          program.segments.back() + 1 == static_cast<int>(model.segments.size());
    CHECK((find(program, "load_input") >= 0) == (model.input.kind != "none" && has_ends));
    const bool has_last = program.segments.back() + 1 == static_cast<int>(model.segments.size());
    CHECK((find(program, "loss") >= 0) == (model.loss.kind != "none" && has_last));
  }
  CHECK(static_cast<int>(done.size()) == schedule.data_parallel);
  for (const auto& [batch, segments] : done)
    CHECK(segments.size() == std::set<int>(segments.begin(), segments.end()).size());
  for (const auto& [batch, segments] : done) CHECK(segments.size() == model.segments.size());
}

TEST_CASE("every strategy that trains on several batches reduces every gradient over them exactly once") {
  const auto strategy = GENERATE(from_range(strategies().names()));
  const auto model_name = GENERATE(from_range(resource_names("models", ".yaml")));
  const int world_size = GENERATE(2, 4);
  const Model& model = shipped(model_name);
  if (strategy == "single") return;
  if (strategy == "pipeline" && static_cast<int>(model.segments.size()) < world_size) return;
  CAPTURE(strategy, model_name, world_size);
  const Schedule schedule = build_schedule(strategy, model, training(world_size, 32));
  if (schedule.data_parallel <= 1) return;
  for (int rank = 0; rank < world_size; ++rank) {
    const Program& program = schedule.program(rank);
    const auto count = reductions_of(schedule, program);
    CHECK(count.size() == model.parameters.size());
    for (const auto& [tensor, times] : count) CHECK(times == 1);
    const double gathered = gradient_bytes(schedule, program, CollectiveKind::kGather);
    const double reduced = gradient_bytes(schedule, program, CollectiveKind::kAllReduce) +
                           gradient_bytes(schedule, program, CollectiveKind::kReduceScatter);
    double padding = 0.0;
    for (const FsdpUnit& unit : schedule.units) {
      padding += unit.size().count();
      for (const int tensor : unit.tensors)
        padding -= model.parameters[static_cast<std::size_t>(tensor)].size.count();
    }
    CHECK(reduced + gathered == model.parameter_bytes().count() + padding);
    CHECK(padding < 4.0 * world_size * static_cast<double>(schedule.units.size()) + 1.0);
    CHECK(gradient_bytes(schedule, program, CollectiveKind::kScatter) == gathered);
  }
}

TEST_CASE("world size 1 has no communication, whatever the strategy") {
  const auto strategy = GENERATE(from_range(strategies().names()));
  const auto model_name = GENERATE(from_range(resource_names("models", ".yaml")));
  CAPTURE(strategy, model_name);
  CHECK_FALSE(has_collectives(build_schedule(strategy, shipped(model_name), training(1, 32))));
}

TEST_CASE("a strategy that does not train is the same for every model, and has no batch") {
  const auto strategy = GENERATE(from_range(strategies().names()));
  if (trains(strategy)) return;
  CAPTURE(strategy);
  for (const int world_size : {1, 2, 4}) {
    const Schedule without = build_schedule(strategy, Model{}, training(world_size, 32));
    const Schedule with = build_schedule(strategy, load_model("simple-cnn"), training(world_size, 32));
    CHECK(without.data_parallel == 0);
    for (int rank = 0; rank < world_size; ++rank)
      CHECK(names(without.program(rank)) == names(with.program(rank)));
  }
}

TEST_CASE("gradients are averaged: every reduction over n ranks is scaled by 1/n exactly once") {
  const auto strategy = GENERATE(from_range(strategies().names()));
  if (strategy == "single") return;
  CAPTURE(strategy);
  const Model model = load_model("simple-cnn");
  const Schedule schedule = build_schedule(strategy, model, training(4, 32));
  if (schedule.data_parallel <= 1) return;
  std::map<int, double> scales;
  const auto scaled = [&](int tensor, double by) { scales.try_emplace(tensor, 1.0).first->second *= by; };
  for (const Op& op : schedule.program(0).ops) {
    if (const auto* copy = std::get_if<CopyIn>(&op.action)) scaled(copy->tensor, copy->scale);
    if (const auto* combine = std::get_if<Combine>(&op.action)) scaled(combine->tensor, combine->scale);
    if (const auto* unit = std::get_if<ScaleUnit>(&op.action))
      for (const int tensor : schedule.units[static_cast<std::size_t>(unit->unit)].tensors)
        scaled(tensor, unit->scale);
  }
  CHECK(scales.size() == model.parameters.size());
  for (const auto& [tensor, scale] : scales) CHECK(scale == 0.25);
}

TEST_CASE("DDP's buckets are those of PyTorch after its rebuild") {
  const auto name = GENERATE(from_range(reference_models()));
  CAPTURE(name);
  const Model model = load_model(name);
  const Schedule schedule = build_schedule("ddp", model, training(2, 32));
  const auto rows = reference_rows(name + ".parameters.csv");
  std::size_t placed = 0;
  for (std::size_t b = 0; b < schedule.buckets.size(); ++b) {
    for (const int tensor : schedule.buckets[b].tensors) {
      CAPTURE(model.parameters[static_cast<std::size_t>(tensor)].name);
      CHECK(rows[static_cast<std::size_t>(tensor)][3] == std::to_string(b));
      CHECK(tensor == model.ready_order()[placed]);
      ++placed;
    }
  }
  CHECK(placed == rows.size());
}

TEST_CASE(
    "DDP's bucket sizes are 1.2 and 0.1 MB, 9.5, 27.2 and 0.3 MB, 9.5, 26.5 and 8.7 MB; of BERT one per "
    "layer") {
  using Sizes = std::vector<double>;
  Sizes bert(14, 28'351'488);
  bert.front() = 2'362'368;
  bert.back() = 95'348'736;
  const std::map<std::string, Sizes> expected{{"simple-cnn", {1'185'320, 77'568}},
                                              {"vgg11-bn-cifar", {9'461'800, 27'157'504, 305'152}},
                                              {"resnet18-cifar", {9'461'800, 26'494'976, 8'739'072}},
                                              {"bert-base", bert}};
  for (const auto& [name, sizes] : expected) {
    CAPTURE(name);
    Sizes found;
    for (const Bucket& bucket : build_schedule("ddp", load_model(name), training(2, 32)).buckets)
      found.push_back(bucket.size.count());
    CHECK(found == sizes);
  }
}

TEST_CASE("a bucket closes when it has reached its limit, so that no tensor is split or deferred") {
  const Model model = load_model("netflix-mlp");  // ready: 4 B, 512 B, 512 B, 15,360 B
  const auto layout = [&](double first, double others) {
    std::vector<double> sizes;
    for (const Bucket& bucket : assign_buckets(model, {0, 1}, Bytes(first), Bytes(others)))
      sizes.push_back(bucket.size.count());
    return sizes;
  };
  CHECK(layout(1e9, 1e9) == std::vector<double>{4 + 512 + 512 + 15'360});
  CHECK(layout(1, 1) == std::vector<double>{4, 512, 512, 15'360});
  CHECK(layout(4, 512) == std::vector<double>{4, 512, 512, 15'360});
  CHECK(layout(5, 513) == std::vector<double>{516, 512 + 15'360});
}

TEST_CASE(
    "DDP copies gradients in as hooks, launches full buckets in order and copies back before the optimizer") {
  const Schedule schedule = build_schedule("ddp", load_model("netflix-mlp"), training(2, 32));
  CHECK(names(schedule.programs.at(0)) ==
        std::vector<std::string>{"load_input", "zero_grad", "forward/fc1", "forward/fc2", "loss",
                                 "backward/fc2", "copy_in/fc2.bias", "copy_in/fc2.weight", "backward/fc1",
                                 "copy_in/fc1.bias", "copy_in/fc1.weight", "all_reduce/bucket0",
                                 "copy_out/bucket0", "optimizer"});
  const auto& ops = schedule.programs[0].ops;
  CHECK(ops[6].within == 5);
  CHECK(ops[9].within == 8);
  CHECK(ops[10].ready_tensor == 0);
  CHECK(ops[11].stream == Stream::kComm);
  CHECK(ops[11].after == std::vector<int>{6, 7, 9, 10});
  CHECK(ops[12].after == std::vector<int>{11});
}

TEST_CASE(
    "DDP's hooks come in gradient-ready order and its all-reduces in bucket order, each after its copies") {
  const auto name = GENERATE(from_range(reference_models()));
  const Model model = load_model(name);
  const Schedule schedule = build_schedule("ddp", model, training(2, 32));
  std::vector<int> hooks;
  std::vector<int> launched;
  const auto& ops = schedule.programs.at(0).ops;
  for (const Op& op : ops) {
    if (const auto* copy = std::get_if<CopyIn>(&op.action)) {
      hooks.push_back(copy->tensor);
      const auto& backward = std::get<Compute>(ops[static_cast<std::size_t>(op.within)].action);
      CHECK(backward.segment == model.parameters[static_cast<std::size_t>(copy->tensor)].segment);
    }
    const auto* call = std::get_if<Collective>(&op.action);
    const auto* array = call == nullptr ? nullptr : std::get_if<BucketArray>(&call->payload);
    if (array == nullptr) continue;
    launched.push_back(array->bucket);
    CHECK(op.after.size() == schedule.buckets[static_cast<std::size_t>(array->bucket)].tensors.size());
  }
  CHECK(hooks == model.ready_order());
  std::vector<int> in_order(schedule.buckets.size());
  std::iota(in_order.begin(), in_order.end(), 0);
  CHECK(launched == in_order);
}

TEST_CASE(
    "DDP broadcasts buffers by dtype before the forward, and none where there are none or it is told not "
    "to") {
  const Model resnet = load_model("resnet18-cifar");
  const Schedule schedule = build_schedule("ddp", resnet, training(2, 32));
  const auto& ops = schedule.programs.at(0).ops;
  std::vector<double> broadcast;
  std::vector<int> indices;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto* call = std::get_if<Collective>(&ops[i].action);
    if (call == nullptr || call->kind != CollectiveKind::kBroadcast) continue;
    broadcast.push_back(call->message.count());
    indices.push_back(static_cast<int>(i));
  }
  CHECK(broadcast == std::vector<double>{38'400, 160});
  CHECK(ops[static_cast<std::size_t>(find(schedule.programs[0], "forward/stem"))].after == indices);
  CHECK(find(build_schedule("ddp", load_model("simple-cnn"), training(2, 32)).programs.at(0), "broadcast/") ==
        -1);
}

TEST_CASE("an explicit bucket cap is that of the first bucket too in PyTorch 2, and not in PyTorch 1") {
  const Model model = load_model("vgg11-bn-cifar");
  const auto caps = [&](const OptionTexts& given) {
    TrainingConfig config = training(2, 32);
    config.options = given;
    const Schedule schedule = build_schedule("ddp", model, config);
    CHECK_FALSE(schedule.options.contains("framework"));
    const Bytes first = schedule.buckets.front().size;
    CHECK(first >= parse_bytes(schedule.options.at("first-bucket-cap"), ""));
    return std::pair(schedule.options.at("first-bucket-cap"), schedule.options.at("bucket-cap"));
  };
  using Caps = std::pair<std::string, std::string>;
  CHECK(caps({}) == Caps("1MiB", "25MiB"));
  CHECK(caps({{"framework", "torch-1"}}) == Caps("1MiB", "25MiB"));
  CHECK(caps({{"bucket-cap", "5MiB"}}) == Caps("5MiB", "5MiB"));
  CHECK(caps({{"bucket-cap", "25MiB"}}) == Caps("25MiB", "25MiB"));
  CHECK(caps({{"bucket-cap", "5MiB"}, {"framework", "torch-1"}}) == Caps("1MiB", "5MiB"));
  CHECK(caps({{"bucket-cap", "5MiB"}, {"first-bucket-cap", "2097152B"}}) == Caps("2MiB", "5MiB"));
  CHECK(caps({{"bucket-cap", "5MiB"}, {"first-bucket-cap", "64KiB"}, {"framework", "torch-1"}}) ==
        Caps("64KiB", "5MiB"));
}

TEST_CASE("DDP at world size 1 still copies every gradient into its bucket and back") {
  const Schedule schedule = build_schedule("ddp", load_model("simple-cnn"), training(1, 32));
  CHECK(find(schedule.programs.at(0), "copy_in/fc2.bias") > 0);
  CHECK(find(schedule.programs.at(0), "copy_out/bucket1") > 0);
}

TEST_CASE("loops over tensors send gradients, in the dtype of gradients, of two arrays the accumulators") {
  const char* gradients = GENERATE("fp32", "bf16+fp32");
  const Model model =
      in_precision(load_model("llama:layers=2,hidden=64,heads=2,feed_forward=96,vocabulary=64"),
                   Precision::parse(std::string("bf16,gradients=") + gradients), true);
  const double all = 4.0 * static_cast<double>(model.parameter_count());
  CHECK(messages(build_schedule("all_reduce", model, training(4, 8)).program(0))
            .at(CollectiveKind::kAllReduce) == all);
  CHECK(messages(build_schedule("gather_scatter", model, training(4, 8)).program(0))
            .at(CollectiveKind::kGather) == 4 * all);
  double copied = 0.0;
  const Schedule ddp = build_schedule("ddp", model, training(4, 8));
  for (const Op& op : ddp.program(0).ops)
    if (std::holds_alternative<CopyIn>(op.action)) copied += op.memory_traffic.count();
  CHECK(copied == 2.0 * all);  // read and written in fp32
}

TEST_CASE("gather_scatter moves each tensor through rank 0, one operation after the other") {
  const Schedule schedule = build_schedule("gather_scatter", load_model("netflix-mlp"), training(4, 32));
  REQUIRE(schedule.programs.size() == 2);
  CHECK(schedule.program_of_rank == std::vector<int>{0, 1, 1, 1});
  const auto& root = schedule.program(0);
  const int gather = find(root, "gather/");
  CHECK(names(root)[static_cast<std::size_t>(gather)] == "gather/fc1.weight");
  CHECK(names(root)[static_cast<std::size_t>(gather) + 1] == "mean/fc1.weight");
  CHECK(names(root)[static_cast<std::size_t>(gather) + 2] == "scatter/fc1.weight");
  CHECK(find(schedule.program(1), "mean/") == -1);
  for (auto i = static_cast<std::size_t>(gather); i < root.ops.size(); ++i)
    CHECK(root.ops[i].after == std::vector<int>{static_cast<int>(i) - 1});
}

TEST_CASE("memory traffic of the optimizer is 12, 20 or 28 bytes per parameter") {
  Model model = load_model("netflix-mlp");
  const auto traffic = [&] {
    return build_schedule("single", model, training(1, 32)).programs.at(0).ops.back().memory_traffic.count() /
           4097;
  };
  CHECK(traffic() == 28);
  model.optimizer = {.kind = "sgd", .momentum = 0.9};
  CHECK(traffic() == 20);
  model.optimizer.momentum = 0.0;
  CHECK(traffic() == 12);
}

TEST_CASE("ranks that do the same share one program, so that 16,384 ranks need no more operations than two") {
  const Model model = load_model("resnet18-cifar");
  const Schedule few = build_schedule("ddp", model, training(2, 32));
  const Schedule many = build_schedule("ddp", model, training(16'384, 32));
  CHECK(many.programs.size() == 1);
  CHECK(many.programs[0].ops.size() == few.programs[0].ops.size());
  CHECK(many.groups.at(0).ranks.size() == 16'384);
}

TEST_CASE("a wrong strategy, world size or batch is a usage error with the valid values") {
  const Model model = load_model("netflix-mlp");
  CHECK_THROWS_WITH(build_schedule("dpd", model, training(2, 32)), Catch::Contains("did you mean 'ddp'"));
  CHECK_THROWS_AS(build_schedule("ddp", model, training(0, 32)), UsageError);
  CHECK_THROWS_AS(build_schedule("single", model, training(2, 32)), UsageError);
  TrainingConfig empty = training(1, 32);
  empty.batch = 0;
  CHECK_THROWS_WITH(build_schedule("ddp", model, empty), Catch::Contains("batch"));
}

}  // namespace stepcast::strategy_test
