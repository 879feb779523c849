#include "core/file.hpp"
#include "core/importer.hpp"
#include "core/table.hpp"
#include "sim/plan/launch_reader.hpp"

/// Imports launch files as options of a forecast.
namespace stepcast {
namespace {

Imported import_launch(const std::vector<std::string>& paths, const ImportTexts& options) {
  OptionTexts given;
  for (const char* option : {"model", "world-size"})
    if (const std::string value = option_or(options, option); !value.empty()) given[option] = value;
  const LaunchReading reading = read_launch_text(read_file(paths.front()), paths.front(), "", given);
  Imported imported{.text = "launch: " + reading.program + "\noptions:\n",
                    .understood = reading.understood,
                    .assumed = reading.assumed,
                    .ignored = reading.ignored};
  for (const auto& [name, value] : reading.options)
    imported.text += fmt::format("  {}: {}\n", name, in_double_quotes(value));
  return imported;
}

const Registration<Importer> kLaunch{
    importers(),
    {.name = "launch",
     .description = "train.sh of Megatron-LM, recipe.py of NeMo, TOML of torchtitan, JSON of DeepSpeed, YAML "
                    "of accelerate",
     .value = {.makes = "file of options",
               .use = "predict --from FILE, which reads launch files too",
               .example = "train.sh --world-size 64 -o options.yaml",
               .options = {{"model",
                            "of a launch file or profile that does not describe it: as in 'predict --model'"},
                           {"world-size", "of a launch file that does not contain it: number of ranks"}},
               .recognises = is_launch_text,
               .read = import_launch},
     .order = 80}};

}  // namespace
}  // namespace stepcast
