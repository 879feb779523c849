#include "core/file.hpp"
#include "core/importer.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/plan/launch_reader.hpp"

/// Imports launch files as options of a forecast.
namespace stepcast {
namespace {

Imported import_launch(const std::vector<std::string>& paths, const ImportTexts& options) {
  OptionTexts given;
  for (const char* option : {"model", "world-size"})
    if (const std::string value = value_or(options, option, ""); !value.empty()) given[option] = value;
  const LaunchReading reading = read_launch_text(read_text(paths.front()), paths.front(), "", given);
  Imported imported{.text = "launch: " + reading.program + "\noptions:\n",
                    .understood = reading.understood,
                    .assumed = reading.assumed,
                    .ignored = reading.ignored};
  for (const auto& [name, value] : reading.options)
    imported.text += fmt::format("  {}: {}\n", name, in_double_quotes(value));
  return imported;
}

const Registration<Importer> kLaunch{
    importers(), {.name = "launch", .value = {is_launch_text, import_launch}, .order = 80}};

}  // namespace
}  // namespace stepcast
