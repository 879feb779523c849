#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "sim/strategies/pipeline_layout.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/worlds.hpp"

namespace stepcast::pipeline_test {
using namespace worlds;
using Catch::Contains;

namespace {

/// `F0 F1 B0 ...`; with several chunks per rank `F0.1` is micro-batch 0 through the rank's second one.
std::string text(const std::vector<PipelineAction>& order, int ranks, bool chunks) {
  std::string result;
  for (const PipelineAction& action : order) {
    const char* const name = action.phase == Phase::kForward         ? "F"
                             : action.phase == Phase::kBackwardInput ? "I"
                             : action.phase == Phase::kBackward      ? "B"
                                                                     : "W";
    result += (result.empty() ? "" : " ") + std::string(name) + std::to_string(action.micro_batch);
    if (chunks) result += "." + std::to_string(action.chunk / ranks);
  }
  return result;
}

std::string order(const std::string& schedule, int rank, int ranks = 4, int micro_batches = 8) {
  return text(pipeline_order({schedule, ranks, micro_batches, 1}, rank, false), ranks, false);
}

/// Most micro-batches (chunks of them) whose forward is done and whose backward is not, all of it.
int peak_live(const std::vector<PipelineAction>& order) {
  int live = 0;
  int peak = 0;
  for (const PipelineAction& action : order)
    peak = std::max(peak, live += action.phase == Phase::kForward ? 1 : accumulates(action.phase) ? -1 : 0);
  return peak;
}

/// When the last of all actions ends, with F and B = I + W per action and messages that take no time.
double makespan(const PipelineShape& shape, double forward, double backward, double weights = 0.0) {
  std::vector<std::vector<PipelineAction>> orders;
  orders.reserve(static_cast<std::size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) orders.push_back(pipeline_order(shape, rank, false));
  const int chunks = shape.ranks * shape.virtual_stages;
  std::map<std::tuple<bool, int, int>, double> ended;
  std::vector<std::size_t> next(orders.size(), 0);
  std::vector<double> free_at(orders.size(), 0.0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < orders.size(); ++rank) {
      if (next[rank] == orders[rank].size()) continue;
      const PipelineAction& action = orders[rank][next[rank]];
      double start = free_at[rank];
      const auto wait_for = [&](bool is_forward, int chunk) {
        const auto found = ended.find({is_forward, chunk, action.micro_batch});
        start = found == ended.end() ? -1.0 : std::max(start, found->second);
      };
      const bool is_forward = action.phase == Phase::kForward,
                 hands_on = action.phase != Phase::kBackwardWeight;
      if (is_forward && action.chunk > 0) wait_for(true, action.chunk - 1);
      if (!is_forward && hands_on && action.chunk + 1 < chunks) wait_for(false, action.chunk + 1);
      if (!is_forward && hands_on && action.chunk + 1 == chunks) wait_for(true, action.chunk);
      if (start < 0.0) continue;
      free_at[rank] = start + (is_forward                         ? forward
                               : !hands_on                        ? weights
                               : action.phase == Phase::kBackward ? backward
                                                                  : backward - weights);
      if (hands_on) ended[{is_forward, action.chunk, action.micro_batch}] = free_at[rank];
      ++next[rank];
      moved = true;
    }
  }
  for (std::size_t rank = 0; rank < orders.size(); ++rank) REQUIRE(next[rank] == orders[rank].size());
  return *std::max_element(free_at.begin(), free_at.end());
}

std::string resolved(const std::string& model, const std::string& split, int parts) {
  const Model loaded = load_model(model);
  return split_text(loaded, split_model(loaded, split, parts, {}));
}

}  // namespace

TEST_CASE("GPipe runs all forwards, then all backwards in reverse: 4 ranks, 8 micro-batches") {
  for (int rank = 0; rank < 4; ++rank)
    CHECK(order("gpipe", rank) == "F0 F1 F2 F3 F4 F5 F6 F7 B7 B6 B5 B4 B3 B2 B1 B0");
}

TEST_CASE("1F1B warms up with p - r forwards and then alternates: 4 ranks, 8 micro-batches") {
  CHECK(order("1f1b", 0) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  CHECK(order("1f1b", 1) == "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7");
  CHECK(order("1f1b", 2) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
  CHECK(order("1f1b", 3) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
}

TEST_CASE(
    "interleaved 1F1B passes groups of p micro-batches through chunk after chunk: 4 ranks, 8 micro-batches") {
  const auto of = [](int rank) {
    return text(pipeline_order({"interleaved", 4, 8, 2}, rank, false), 4, true);
  };
  CHECK(of(0) ==
        "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 F5.1 B3.1 F6.1 B0.0 "
        "F7.1 B1.0 B2.0 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0");
  CHECK(of(3) ==
        "F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0 F6.0 B2.0 F7.0 B3.0 "
        "F4.1 B4.1 F5.1 B5.1 F6.1 B6.1 F7.1 B7.1 B4.0 B5.0 B6.0 B7.0");
}

TEST_CASE("makespans of 4 ranks and 8 micro-batches with F = 1 and B = 2 are 33, 33 and 28.5") {
  CHECK(makespan({"gpipe", 4, 8, 1}, 1.0, 2.0) == 33.0);
  CHECK(makespan({"1f1b", 4, 8, 1}, 1.0, 2.0) == 33.0);
  CHECK(makespan({"interleaved", 4, 8, 2}, 0.5, 1.0) == 28.5);
}

TEST_CASE("makespans are m (F + B) + (p - 1)(F + B) / v") {
  for (const int ranks : {2, 3, 4, 8})
    for (const int rounds : {1, 2, 5}) {
      const int m = ranks * rounds;
      CHECK(makespan({"gpipe", ranks, m, 1}, 1.0, 2.0) == 3.0 * (m + ranks - 1));
      CHECK(makespan({"1f1b", ranks, m, 1}, 1.0, 2.0) == 3.0 * (m + ranks - 1));
      for (const int v : {2, 4})
        CHECK(makespan({"interleaved", ranks, m, v}, 1.0 / v, 2.0 / v) ==
              Approx(3.0 * m + 3.0 * (ranks - 1) / v));
    }
}

TEST_CASE("ZB-H1 puts off the gradients of weights, so that all ranks hold p micro-batches: 4 ranks, 8") {
  CHECK(order("zb-h1", 0) == "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7");
  CHECK(order("zb-h1", 2) == "F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7");
  CHECK(order("zb-h1", 3) == "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7");
  for (const int m : {2, 4, 8, 11})
    for (int rank = 0; rank < 4; ++rank)
      CHECK(peak_live(pipeline_order({"zb-h1", 4, m, 1}, rank, false)) == std::min(m, 4));
}

TEST_CASE("makespans of ZB-H1 are m (F + I + W) + (p - 1)(F + I - W)") {
  CHECK(makespan({"zb-h1", 4, 8, 1}, 1.0, 2.0, 1.0) == 27.0);
  CHECK(makespan({"zb-h1", 4, 8, 1}, 1.0, 2.1, 0.8) == Approx(29.3));
  CHECK(makespan({"zb-h1", 8, 32, 1}, 1.0, 2.0, 1.0) == 103.0);
  for (const int p : {2, 3, 4, 8})
    for (const int m : {p, 2 * p + 1, 5 * p})
      for (const double input : {1.0, 1.3, 0.9})
        for (const double weights : {0.5, 0.9}) {
          INFO(p << " ranks, " << m << " micro-batches, I " << input << ", W " << weights);
          CHECK(makespan({"zb-h1", p, m, 1}, 1.0, input + weights, weights) ==
                Approx(m * (1.0 + input + weights) + (p - 1) * (1.0 + input - weights)));
        }
}

TEST_CASE("live micro-batches peak at m, at min(m, p - r), and at (v - 1) p + 2 (p - 1 - r) + 1 chunks") {
  for (const int m : {2, 4, 8})
    for (int rank = 0; rank < 4; ++rank) {
      CHECK(peak_live(pipeline_order({"gpipe", 4, m, 1}, rank, false)) == m);
      CHECK(peak_live(pipeline_order({"1f1b", 4, m, 1}, rank, false)) == std::min(m, 4 - rank));
    }
  for (int rank = 0; rank < 4; ++rank)
    CHECK(peak_live(pipeline_order({"interleaved", 4, 8, 2}, rank, false)) == 4 + 2 * (3 - rank) + 1);
}

TEST_CASE("every rank runs each forward once, before its backward, in every schedule") {
  for (const PipelineShape& shape : std::vector<PipelineShape>{{"gpipe", 3, 5, 1},
                                                               {"1f1b", 3, 5, 1},
                                                               {"1f1b", 4, 2, 1},
                                                               {"interleaved", 3, 6, 3},
                                                               {"zb-h1", 4, 2, 1},
                                                               {"zb-h1", 3, 7, 1}}) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      std::map<std::pair<int, int>, int> forwards;
      std::map<std::pair<int, int>, int> inputs;
      std::map<std::pair<int, int>, int> backwards;
      for (const PipelineAction& action : pipeline_order(shape, rank, false)) {
        CHECK(action.chunk % shape.ranks == rank);
        const std::pair key(action.chunk, action.micro_batch);
        if (action.phase != Phase::kForward) CHECK(forwards[key] == 1);
        if (action.phase == Phase::kBackwardWeight) CHECK(inputs[key] == 1);
        ++(action.phase == Phase::kForward ? forwards : accumulates(action.phase) ? backwards : inputs)[key];
      }
      if (shape.schedule == "zb-h1") CHECK(inputs == forwards);
      CHECK(forwards.size() == static_cast<std::size_t>(shape.micro_batches * shape.virtual_stages));
      CHECK(forwards == backwards);
    }
  }
}

TEST_CASE("a split counts blocks; the embedding is in the first stage, the head in the last") {
  const Model model = load_model("bert-base");
  const auto parts = split_model(model, "6-2-2-2", 4, {});
  CHECK(parts[0] == std::vector<int>{0, 1, 2, 3, 4, 5, 6});
  CHECK(parts[1] == std::vector<int>{7, 8});
  CHECK(parts[3] == std::vector<int>{11, 12, 13});
  CHECK(resolved("bert-base", "even", 4) == "3-3-3-3");
  CHECK(resolved("bert-base", "even", 5) == "3-3-2-2-2");
  CHECK(resolved("bert-base", "ratio:2-2-2-2", 4) == "3-3-3-3");
  CHECK(resolved("bert-base", "ratio:3-1-1-1", 4) == "6-2-2-2");
  CHECK(resolved("simple-cnn", "3-1", 2) == "3-1");
  CHECK(resolved("bert-base", "2x4-2x2", 4) == "4-4-2-2");
  CHECK(resolved("bert-base", "even", 10) == "2x2-8x1");
  CHECK(resolved("bert-base", "2x2-8x1", 10) == "2x2-8x1");
  const auto ends = split_model(model, "0-6-6-0", 4, {});
  CHECK(ends[0] == std::vector<int>{0});
  CHECK(ends[1].front() == 1);
  CHECK(ends[3] == std::vector<int>{13});
  CHECK(resolved("bert-base", "0-6-6-0", 4) == "0-6-6-0");
  CHECK(resolved("bert-base:layers=2", "0-1-1-0", 4) == "0-1-1-0");  // more stages than blocks
  CHECK_THROWS_WITH(resolved("simple-cnn", "0-4", 2), Contains("every stage needs a block"));
}

TEST_CASE("the balanced split has the shortest longest stage by measured time, riders weighed") {
  const Model model = load_model("bert-base:layers=4");
  const auto counts = [&](const std::vector<double>& times, int parts) {
    return split_text(model, split_model(model, "balanced", parts, times));
  };
  CHECK(counts({0, 1, 1, 1, 1, 0}, 2) == "2-2");
  CHECK(counts({2, 1, 1, 1, 1, 0}, 2) == "1-3");
  CHECK(counts({0, 1, 1, 1, 1, 2}, 2) == "3-1");
  CHECK_THROWS_WITH(split_model(model, "balanced", 2, {}), Contains("--trace"));
}

TEST_CASE("a split that does not fit is refused with what would fit") {
  const Model model = load_model("bert-base");
  const auto refusal = [&](const std::string& split, int parts) {
    return error_of<UsageError>([&] { return split_model(model, split, parts, {}); });
  };
  CHECK(
      refusal("2-2-2-2", 4) ==
      "--split 2-2-2-2 is 8 blocks, bert-base has 12; even is 3-3-3-3; for shares give ratio:2-2-2-2, for 8 "
      "blocks "
      "bert-base:layers=8");
  CHECK_THAT(refusal("6-6", 4), Contains("has 2 stages, but 4"));
  CHECK_THAT(refusal("3-3-x-3", 4), Contains("'x'"));
  CHECK_THAT(refusal("3--3-6", 4), Contains("''"));
  CHECK_THAT(refusal("4-0-4-4", 4), Contains("every stage needs a block"));
  CHECK_THAT(refusal("3x", 3), Contains("'3x' is no number of blocks"));
  CHECK_THAT(refusal("x4-4-4", 3), Contains("'x4'"));
  CHECK_THAT(refusal("999999x1", 3), Contains("'999999x1'"));
  CHECK_THAT(refusal("3x4", 4), Contains("has 3 stages, but 4"));
  CHECK_THAT(refusal("evne", 4), Contains("even"));
  CHECK_THAT(refusal("ratio:100-1-1-1", 4), Contains("every stage needs a block"));
  CHECK_THAT(refusal("even", 13),
             Contains("too few for 13 stages, unless ends have none, as in --split 0-1-1-0"));
}

TEST_CASE("each boundary passes every micro-batch's output forward and as many bytes back") {
  const Model model = load_model("bert-base:layers=4,hidden=64,sequence=16");
  const Schedule schedule = build_schedule("pipeline", model, training(4, 32, {{"split", "even"}}, 4));
  const double boundary = 8.0 * 16 * 64 * 4;  // samples x sequence x hidden x float32
  for (int rank = 0; rank < 4; ++rank) {
    double sent = 0.0;
    for (const Op& op : schedule.program(rank).ops)
      if (const auto* send = std::get_if<Send>(&op.action)) sent += send->message.count();
    const int neighbours = rank == 0 || rank == 3 ? 1 : 2;
    CHECK(sent == 4 * boundary * neighbours);
  }
}

TEST_CASE("replicas of a stage share a program, and their gradients meet in the stage's group alone") {
  TrainingConfig config = training(6, 16, {{"split", "2-2"}}, 2);
  config.mesh = Mesh::parse("pipeline=2,data=3");
  const Schedule schedule = build_schedule("pipeline", load_model("bert-base:layers=4,hidden=64"), config);
  CHECK(schedule.programs.size() == 2);
  CHECK(schedule.program_of_rank == std::vector<int>{0, 0, 0, 1, 1, 1});
  CHECK(schedule.data_parallel == 3);
  CHECK(schedule.groups[1].ranks == std::vector<int>{0, 1, 2});
  CHECK(schedule.groups[2].ranks == std::vector<int>{3, 4, 5});
}

TEST_CASE(
    "copies of a tied tensor are reduced over replicas, then added up over the stages of each replica") {
  const Model model = load_model("gpt2-small:layers=2,hidden=64,heads=2");
  const Bytes whole = model.parameters[0].size;
  TrainingConfig config = training(6, 16, {{"split", "1-1"}}, 2);
  config.mesh = Mesh::parse("pipeline=2,data=3");
  for (const char* zero : {"0", "1"}) {
    INFO("ZeRO " << zero);
    config.options["zero"] = zero;
    const Schedule schedule = build_schedule("pipeline", model, config);
    REQUIRE(schedule.families.size() == 1);
    const int family = static_cast<int>(schedule.groups.size());
    for (int rank = 0; rank < 6; ++rank)
      CHECK(schedule.groups[static_cast<std::size_t>(schedule.group_index(family, rank))].ranks ==
            std::vector<int>{rank % 3, rank % 3 + 3});
    for (const Program& program : schedule.programs) {
      const auto sum = std::find_if(program.ops.begin(), program.ops.end(),
                                    [](const Op& op) { return op.name == "all_reduce/wte.weight"; });
      REQUIRE(sum != program.ops.end());
      const auto& call = std::get<Collective>(sum->action);
      CHECK(call.group == family);
      const bool is_shard = *zero == '1';
      CHECK(call.message.count() == Approx(whole.count() / (is_shard ? 3.0 : 1.0)).epsilon(1e-4));
      double reduced = 0.0;  // over the replicas, before
      for (auto op = program.ops.begin(); op != sum; ++op)
        if (const auto* other = std::get_if<Collective>(&op->action)) reduced += other->message.count();
      Bytes own = whole;
      for (const int segment : program.segments)
        for (const int tensor : model.segments[static_cast<std::size_t>(segment)].parameters)
          if (tensor != 0) own += model.parameters[static_cast<std::size_t>(tensor)].size;
      CHECK(reduced == Approx(own.count()).epsilon(1e-3));
    }
  }
}

TEST_CASE("the copy of a tied tensor is a part of its segment's update") {
  const Model model = load_model("gpt2-small:layers=2,hidden=64,heads=2");
  const Schedule schedule = build_schedule("pipeline", model, training(2, 4, {{"split", "1-1"}}));
  const Segment& embedding = model.segments[0];
  const double table =
      static_cast<double>(model.parameters[0].numel()) / static_cast<double>(model.trained_count(embedding));
  CHECK(table < 0.99);
  for (const char* name : {"optimizer/", "zero_grad/"}) {
    const Program &first = schedule.program(0), &last = schedule.program(1);
    const Op& whole = first.ops[static_cast<std::size_t>(find(first, name + embedding.name))];
    const Op& copy = last.ops[static_cast<std::size_t>(find(last, name + embedding.name))];
    CHECK(std::get<Compute>(whole.action).part == 1.0);
    CHECK(std::get<Compute>(copy.action).part == Approx(table));
    CHECK(copy.memory_traffic.count() == Approx(table * whole.memory_traffic.count()));
  }
}

TEST_CASE("Megatron cuts the gradients of the first chunk alone, and adds up whole arrays of tied tensors") {
  const std::string name = "gpt:layers=8,hidden=64,heads=2,sequence=32,vocabulary=128,dropout=0,tied=1";
  for (const char* zero : {"0", "1", "2"})
    for (const char* engine : {"0", "1"}) {
      const Model model = load_model(name + ",transformer_engine=" + engine);
      TrainingConfig config = training(4, 16, {{"schedule", "interleaved"}, {"virtual-stages", "2"}}, 4);
      config.mesh = Mesh::parse("pipeline=2,data=2");
      config.options["zero"] = zero;
      config.options["bucket-cap"] = "100kB";
      const Schedule schedule = build_schedule("pipeline", model, config);
      const char* verb = *zero == '0' ? "all_reduce/bucket" : "reduce_scatter/bucket";
      std::vector<std::ptrdiff_t> buckets;
      for (const Program& program : schedule.programs)
        buckets.push_back(
            std::ranges::count_if(program.ops, [&](const Op& op) { return op.name.starts_with(verb); }));
      INFO("ZeRO " << zero << ", Megatron " << engine << ": " << buckets[0] << " and " << buckets[1]);
      CHECK(buckets[0] > 3);
      const std::ptrdiff_t tied = *zero == '0' ? 0 : 1;  // an array of its own
      CHECK((buckets[1] == 2 + tied) == (*engine == '1'));
      const Program& last = schedule.program(2);
      const auto& sum =
          std::get<Collective>(last.ops[static_cast<std::size_t>(find(last, "all_reduce/word"))].action);
      const double part = *zero == '2' || (*zero == '1' && *engine == '0') ? 0.5 : 1.0;
      CHECK(sum.message.count() == Approx(part * model.parameters[0].size.count()).epsilon(1e-3));
    }
}

TEST_CASE("replicas of a stage heed the bucket cap, and different caps are different steps") {
  const Model model = load_model("bert-base:layers=4,hidden=64");
  TrainingConfig config = training(4, 16, {{"split", "2-2"}}, 2);
  config.mesh = Mesh::parse("pipeline=2,data=2");
  const Schedule plain = build_schedule("pipeline", model, config);
  CHECK(plain.options.at("bucket-cap") == "25MiB");
  CHECK(plain.options.at("first-bucket-cap") == "1MiB");
  config.options["bucket-cap"] = "102400B";
  const Schedule capped = build_schedule("pipeline", model, config);
  CHECK(capped.buckets.size() > plain.buckets.size());
  for (const Bucket& bucket : capped.buckets)
    if (&bucket != &capped.buckets.back()) CHECK(bucket.size > Bytes(0));
  CHECK(capped.options.at("first-bucket-cap") == "100KiB");
  CHECK(capped.label == "pipeline, mesh pipeline=2,data=2, split 2-2, bucket-cap 100KiB");
}

TEST_CASE(
    "options that mean nothing to a pipeline here are refused, or dropped so that equal steps are one case") {
  const Model model = load_model("bert-base:layers=4,hidden=64");
  TrainingConfig config = training(2, 16, {{"split", "even"}}, 2);
  const OptionTexts plain = build_schedule("pipeline", model, config).options;
  CHECK(plain == OptionTexts{{"split", "2-2"},
                             {"schedule", "1f1b"},
                             {"checkpoint", "never"},
                             {"messages", "ahead"},
                             {"forward-only", "no"}});
  config.mesh = Mesh::parse("data=1,pipeline=2");
  config.options = {{"split", "2-2"}, {"virtual-stages", "1"}};
  CHECK(build_schedule("pipeline", model, config).options == plain);
  const auto checkpoint = [&] { return build_schedule("pipeline", model, config).options.at("checkpoint"); };
  config.options = {{"checkpoint", "except_last"}};
  CHECK(checkpoint() == "except_last");
  config.micro_batches = 1;  // is the last
  CHECK(checkpoint() == "never");
  config.micro_batches = 2;
  config.options = {{"bucket-cap", "5MiB"}};
  CHECK_THROWS_WITH(build_schedule("pipeline", model, config),
                    Contains("--bucket-cap has no effect in a pipeline that"));
  config.options = {{"checkpoint", "always"}, {"forward-only", "yes"}};
  CHECK_THROWS_WITH(build_schedule("pipeline", model, config), Contains("--checkpoint has no effect"));
  config.options = {{"schedule", "gpipe"}, {"forward-only", "yes"}};
  const OptionTexts forward = build_schedule("pipeline", model, config).options;
  config.options.erase("schedule");
  CHECK(build_schedule("pipeline", model, config).options == forward);
}

TEST_CASE("a stage that waits for its messages computes nothing while they travel") {
  const Model model = load_model("bert-base:layers=4,hidden=64");
  TrainingConfig config = training(2, 32, {{"split", "even"}}, 4);
  config.options = {{"messages", "waited"}};
  const Program stage = build_schedule("pipeline", model, config).programs[0];
  int latest = -1, sent = 0, waited = 0;
  for (std::size_t i = 0; i < stage.ops.size(); ++i) {
    const Op& op = stage.ops[i];
    if (std::holds_alternative<Recv>(op.action)) CHECK(op.after == std::vector<int>{latest});
    sent += std::holds_alternative<Send>(op.action) ? 1 : 0;
    if (!std::holds_alternative<Compute>(op.action)) continue;
    latest = static_cast<int>(i);
    for (const int before : op.after)
      waited += std::holds_alternative<Send>(stage.ops[before].action) ? 1 : 0;
  }
  CHECK(sent == 4);
  CHECK(waited == 4);
}

TEST_CASE("options of a pipeline that do not go together are refused") {
  const Model model = load_model("bert-base:layers=4,hidden=64");
  TrainingConfig config = training(2, 24, {{"split", "even"}}, 3);
  config.options["schedule"] = "interleaved";
  CHECK_THROWS_WITH(build_schedule("pipeline", model, config), Contains("--virtual-stages"));
  config.options = {{"schedule", "interleaved"}, {"virtual-stages", "2"}, {"messages", "waited"}};
  config.micro_batches = 2;
  CHECK_THROWS_WITH(build_schedule("pipeline", model, config), Contains("--messages waited"));
  config.micro_batches = 3;
  config.options = {{"schedule", "interleaved"}};
  config.options["schedule"] = "1f1b";
  config.options["virtual-stages"] = "2";
  CHECK_THROWS_WITH(build_schedule("pipeline", model, config), Contains("interleaved"));
  config.options["virtual-stages"] = "1";
  config.options["schedule"] = "gpip";
  CHECK_THROWS_WITH(build_schedule("pipeline", model, config), Contains("gpipe"));
  config.options["schedule"] = "gpipe";
  config.options["checkpoint"] = "some";
  CHECK_THROWS_WITH(build_schedule("pipeline", model, config), Contains("except_last"));
  config.options["checkpoint"] = "never";
  config.micro_batches = 5;
  CHECK_THROWS_WITH(build_schedule("pipeline", model, config),
                    Contains("possible are 1, 2, 3, 4, 6, 8, 12, 24"));
}

}  // namespace stepcast::pipeline_test
