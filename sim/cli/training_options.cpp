#include "sim/cli/training_options.hpp"

#include "sim/cli/option.hpp"

namespace stepcast {
namespace {

/// `ddp, pipeline: dtype in which buckets travel: none or fp16`
std::string describe(const KnownOption& known) {
  const StrategyOption& option = known.option;
  return joined(known.strategies) + ": " + option.help +
         (option.choices.empty() ? "" : ": " + alternatives(option.choices));
}

po::value_semantic* value_of(const StrategyOption& option) {
  if (option.kind == OptionKind::kFlag) return po::bool_switch();
  auto* value = po::value<std::string>();
  return option.standard.empty() ? value : value->default_value("", option.standard);
}

}  // namespace

void declare_training_options(po::options_description& options) {
  declare_options(options, "training", {{"strategies", entry_lines(strategies())}});
  for (const KnownOption& known : known_options())
    options.add_options()(known.option.name.c_str(), value_of(known.option), describe(known).c_str());
}

TrainingConfig training_config(const po::variables_map& values) {
  return training_config(given_options(values));
}

}  // namespace stepcast
