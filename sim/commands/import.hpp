#pragma once

#include "core/importer.hpp"
#include "sim/cli/command.hpp"

namespace stepcast {

/// Declares the options of all importers, each once.
void declare_import_options(po::options_description& options);

/// Given options of importers.
ImportTexts import_texts(const po::variables_map& values);

}  // namespace stepcast
