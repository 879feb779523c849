#include "sim/strategies/chakra.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/file.hpp"
#include "core/importer.hpp"
#include "models/chakra.hpp"
#include "records/result.hpp"
#include "sim/replay/prediction.hpp"
#include "sim/replay/prediction_options.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/worlds.hpp"

/// Execution traces of Chakra that are written of a forecast and replayed.
namespace stepcast::chakra_test {
using namespace worlds;
namespace {

const std::map<std::string, OptionTexts> kSteps{
    {"DDP", {{"strategy", "ddp"}, {"model", "resnet18-cifar"}, {"batch", "128"}}},
    {"FSDP", {{"strategy", "fsdp"}, {"model", "bert-base"}, {"batch", "8"}}},
    {"pipeline", {{"strategy", "pipeline"}, {"model", "bert-base"}, {"batch", "16"}, {"micro-batches", "4"}}},
    {"pipelines with replicas",
     {{"strategy", "pipeline"},
      {"model", "bert-base"},
      {"batch", "8"},
      {"micro-batches", "4"},
      {"mesh", "pipeline=2,data=2"}}}};

Result forecast(OptionTexts options) {
  options.insert({{"cluster", "h100x8-hgx"}, {"world-size", "4"}, {"exact", "yes"}});
  return predict(prediction_request(options));
}
Result forecast_on_gpus(OptionTexts options) {
  options.insert({"device", "h100-sxm"});
  return forecast(std::move(options));
}

/// A message: kind, bytes, and the ranks of its group, or receiver or sender and tag.
struct Message {
  std::string kind;
  double bytes = 0.0;
  std::vector<int> ranks;
  int tag = -1;
  auto operator<=>(const Message&) const = default;
};

std::vector<Message> messages_of(const Schedule& schedule, int rank) {
  std::vector<Message> all;
  for (const Op& op : schedule.program(rank).ops) {
    if (const auto* call = std::get_if<Collective>(&op.action))
      all.push_back({to_text(call->kind), call->message.count(),
                     schedule.groups[schedule.group_index(call->group, rank)].ranks});
    if (const auto* send = std::get_if<Send>(&op.action))
      all.push_back({"send", send->message.count(), {rank + send->offset}, send->tag});
    if (const auto* receive = std::get_if<Recv>(&op.action))
      all.push_back({"recv", receive->message.count(), {rank + receive->offset}, receive->tag});
  }
  std::ranges::sort(all);
  return all;
}

/// Of a trace, read without the code that replays it.
std::vector<Message> messages_of(const std::string& path, const std::vector<int>& world) {
  const nlohmann::json groups =
      nlohmann::json::parse(read_file(path.substr(0, path.size() - 5) + ".groups.json"));
  const std::map<std::int64_t, std::string> kinds{{0, to_text(CollectiveKind::kAllReduce)},
                                                  {2, to_text(CollectiveKind::kAllGather)},
                                                  {5, to_text(CollectiveKind::kBroadcast)},
                                                  {7, to_text(CollectiveKind::kReduceScatter)}};
  std::vector<Message> all;
  for (const ChakraNode& node : read_chakra(read_file(path), path)) {
    if (node.type <= ChakraType::kCompute) continue;
    const auto bytes = static_cast<double>(node.numbers.at("comm_size"));
    if (node.type == ChakraType::kCollective) {
      all.push_back({kinds.at(node.numbers.at("comm_type")), bytes,
                     node.group == "0" ? world : groups.at(node.group).get<std::vector<int>>()});
      continue;
    }
    const bool sends = node.type == ChakraType::kSend;
    all.push_back({sends ? "send" : "recv",
                   bytes,
                   {static_cast<int>(node.numbers.at(sends ? "comm_dst" : "comm_src"))},
                   static_cast<int>(node.numbers.at("comm_tag"))});
  }
  std::ranges::sort(all);
  return all;
}

}  // namespace

TEST_CASE("traces of DDP and of pipelines on four ranks contain the messages of the Schedule", "[replay]") {
  for (const auto& [name, options] : kSteps) {
    INFO(name);
    const TemporaryFolder folder;
    const Result result = forecast_on_gpus(options);
    write_chakra(folder.file("step"), result, false);
    const Schedule& schedule = *result.forecast.schedule;
    std::size_t count = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const std::vector<Message> own = messages_of(schedule, rank);
      CHECK(messages_of(folder.file(fmt::format("step.{}.et", rank)), {0, 1, 2, 3}) == own);
      count += own.size();
    }
    CHECK(count >= 8);
  }
}

TEST_CASE("a step that is read back takes as long, and sends as much", "[replay]") {
  for (const auto& [name, options] : kSteps) {
    INFO(name);
    const TemporaryFolder folder;
    const Result own = forecast_on_gpus(options);
    write_chakra(folder.file("step"), own, false);
    const Result read = forecast({{"model", folder.file("step.0.et")}});
    // Every node is rounded to a nanosecond.
    CHECK(read.median_step_time_s() == Approx(own.median_step_time_s()).epsilon(1e-4));
    CHECK(read.bytes_sent_per_rank == Approx(own.bytes_sent_per_rank));
    CHECK(read.configuration.strategy == "chakra");
    CHECK(read.configuration.data_parallel == 0);  // neither samples per second nor a step of one rank
    CHECK(read.forecast.baseline_step_time_s.empty());
  }
}

TEST_CASE("a trace written on a slow cluster is replayed on a fast one as if it were forecast there",
          "[replay]") {
  for (const char* strategy : {"ddp", "pipeline"}) {
    INFO(strategy);
    const TemporaryFolder folder;
    const auto on = [&](const std::string& rate) {
      OptionTexts options{{"model", "bert-base:layers=4"},
                          {"batch", "8"},
                          {"strategy", strategy},
                          {"device", "h100-sxm"},
                          {"cluster", "h100-hosts:hosts=4,rate=" + rate},
                          {"world-size", "4"},
                          {"exact", "yes"}};
      if (strategy == std::string("ddp")) options["zero"] = "1";
      if (strategy == std::string("pipeline")) options["micro-batches"] = "4";
      return predict(prediction_request(options));
    };
    write_chakra(folder.file("step"), on("10Gb/s"), false);
    const Result read = predict(prediction_request({{"model", folder.file("step.0.et")},
                                                    {"cluster", "h100-hosts:hosts=4,rate=400Gb/s"},
                                                    {"world-size", "4"}}));
    CHECK(read.median_step_time_s() == Approx(on("400Gb/s").median_step_time_s()).epsilon(0.02));
  }
}

TEST_CASE("traces are replayed without a strategy, and other ranks are refused with the words to use",
          "[replay]") {
  const TemporaryFolder folder;
  write_chakra(folder.file("step"), forecast_on_gpus(kSteps.at("DDP")), false);
  const std::string model = folder.file("step.0.et");
  const double step_time_s = forecast({{"model", model}}).median_step_time_s();
  CHECK(forecast({{"model", model}, {"strategy", "chakra"}}).median_step_time_s() == step_time_s);
  CHECK_THAT(error_of<UsageError>([&] {
               return forecast({{"model", model}, {"strategy", "ddp"}});
             }),
             Catch::Contains("--strategy ddp") && Catch::Contains("leave it out"));
  CHECK_THAT(error_of<UsageError>([&] {
               return predict(
                   prediction_request({{"model", model}, {"cluster", "h100x8-hgx"}, {"world-size", "2"}}));
             }),
             Catch::Contains("--world-size"));
  std::filesystem::remove(folder.file("step.2.et"));
  CHECK_THAT(error_of([&] {
               return forecast({{"model", model}});
             }),
             Catch::Contains("step.2.et: is missing") && Catch::Contains("rank 3"));
  const auto& kind = importer_of(model, "");
  CHECK(kind.name == "chakra");
  CHECK_THAT(kind.value.read({model}, {}).obstacles.front(), Catch::Contains("predict --model"));
}

}  // namespace stepcast::chakra_test
