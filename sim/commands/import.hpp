#pragma once

#include "core/importer.hpp"
#include "sim/cli/command.hpp"

namespace stepcast {

/// Given options of commands/importers.yaml.
ImportTexts import_texts(const po::variables_map& values);

}  // namespace stepcast
