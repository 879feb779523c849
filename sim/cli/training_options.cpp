#include "sim/cli/training_options.hpp"

#include <algorithm>

#include "sim/cli/option.hpp"

namespace stepcast {
namespace {

/// What --help says of --strategy: every strategy with its description.
std::string describe_strategies() {
  std::string text = "how the ranks share the work";
  for (const auto& entry : strategies().entries()) text += "\n" + entry.name + ": " + entry.description;
  return text;
}

/// Options that only some strategies heed.
std::vector<std::string> special_options() {
  std::vector<std::string> all;
  for (const auto& entry : strategies().entries())
    for (const std::string& option : entry.thing.options)
      if (std::find(all.begin(), all.end(), option) == all.end()) all.push_back(option);
  return all;
}

void refuse_foreign_options(const po::variables_map& values, const std::string& strategy) {
  const std::vector<std::string>& own = strategies().find(strategy).options;
  for (const std::string& option : special_options()) {
    if (values[option].defaulted() || std::find(own.begin(), own.end(), option) != own.end()) continue;
    std::string takers;
    for (const auto& entry : strategies().entries()) {
      const auto& theirs = entry.thing.options;
      if (std::find(theirs.begin(), theirs.end(), option) != theirs.end())
        takers += (takers.empty() ? "" : " and ") + entry.name;
    }
    const char* verb = takers.find(" and ") == std::string::npos ? " takes it" : " take it";
    std::string message = "--";
    message.append(option).append(" means nothing to strategy '").append(strategy).append("'; ");
    throw UsageError(message.append(takers).append(verb));
  }
}

}  // namespace

void declare_training_options(po::options_description& options) {
  const TrainingConfig standard;
  const auto text = [](const std::string& value) { return po::value<std::string>()->default_value(value); };
  // clang-format off
  options.add_options()
      ("strategy", po::value<std::string>(), describe_strategies().c_str())
      ("micro-batches", po::value<int>()->default_value(standard.micro_batches),
       "equal parts of the batch whose gradients are accumulated; a pipeline passes them on")
      ("bucket-cap", text("25MiB"), "ddp: a bucket closes at this size")
      ("first-bucket-cap", text("1MiB"), "ddp: the same for the first bucket")
      ("compress", text(standard.compress), "ddp: dtype in which buckets travel: none or fp16")
      ("split", text(standard.split),
       "pipeline: blocks per stage (3-3-3-3), even, ratio:2-1-1 (shares), or balanced (by measured time)")
      ("schedule", text(standard.schedule), "pipeline: gpipe, 1f1b or interleaved")
      ("virtual-stages", po::value<int>()->default_value(standard.virtual_stages),
       "pipeline: parts of the model per rank, with --schedule interleaved")
      ("checkpoint", text(standard.checkpoint),
       "pipeline: micro-batches whose activations are recomputed: never, except_last or always")
      ("forward-only", po::bool_switch(),
       "pipeline: no backward and no optimizer, as in inference")
      ("mesh", po::value<std::string>()->default_value("", "one pipeline"),
       "pipeline: ranks per dimension, as pipeline=2,data=2")
      ("sharding", text(standard.sharding), "fsdp: full_shard, shard_grad_op or no_shard")
      ("wrap", text(standard.wrap), "fsdp: what is gathered at once: block, layer or root")
      ("forward-prefetch", po::bool_switch(),
       "fsdp: gather the next unit while one computes its forward")
      ("backward-prefetch", text(standard.backward_prefetch), "fsdp: the same in the backward: pre, post or none")
      ("limit-all-gathers", po::value<int>()->default_value(standard.limit_all_gathers),
       "fsdp: units gathered and not yet freed; 0 is no limit")
      ("method", text(standard.method),
       "broadcast: sequential (every GPU copies from the host, one after another), relay (host to GPU 0, then GPU 0 to "
       "each other GPU, one after another), chunked (host to GPU 0 in chunks on asynchronous streams, each chunk "
       "passed on while the next arrives)")
      ("buffer", text("1GB"), "broadcast: bytes that go to every GPU")
      ("chunk", text("64MiB"), "broadcast: bytes that are passed on at once, with --method chunked")
      ("pinned", po::bool_switch(), "broadcast: the buffer of the host is pinned memory, else pageable");
  // clang-format on
}

TrainingConfig training_config(const po::variables_map& values) {
  if (values.count("strategy") == 0) throw UsageError("--strategy is missing; see --help");
  refuse_foreign_options(values, values["strategy"].as<std::string>());
  const auto text = [&](const char* name) { return values[name].as<std::string>(); };
  TrainingConfig config;
  config.micro_batches = int_option(values, "micro-batches", 1);
  config.bucket_cap = bytes_option(values, "bucket-cap");
  config.first_bucket_cap = bytes_option(values, "first-bucket-cap");
  config.compress = text("compress");
  config.split = text("split");
  config.schedule = text("schedule");
  config.virtual_stages = int_option(values, "virtual-stages", 1);
  config.checkpoint = text("checkpoint");
  config.forward_only = values["forward-only"].as<bool>();
  config.mesh = text("mesh");
  config.sharding = text("sharding");
  config.wrap = text("wrap");
  config.forward_prefetch = values["forward-prefetch"].as<bool>();
  config.backward_prefetch = text("backward-prefetch");
  config.limit_all_gathers = int_option(values, "limit-all-gathers", 0);
  config.method = text("method");
  config.buffer = bytes_option(values, "buffer");
  config.chunk = bytes_option(values, "chunk");
  config.pinned = values["pinned"].as<bool>();
  return config;
}

}  // namespace stepcast
