#pragma once

#include "core/yaml.hpp"
#include "models/model.hpp"
#include "models/settings.hpp"

namespace stepcast {

/// Contents of a model file in the form of models/model_reader.cpp, without name, costs and tensors, which
/// complete() adds. \throws InputError naming file, line and key
Model read_model(const YamlNode& file, const Settings& settings);

/// The model of a parsed file with settings in place of its own, complete but for its name and path.
Model model_from(const YamlNode& file, const Specification& given);

}  // namespace stepcast
