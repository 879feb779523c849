#pragma once

#include <string>

#include "core/specification.hpp"

/// Configurations of Hugging Face's transformers, read as models of this project's families.
namespace stepcast {

/// `hf:config.json`, `hf:folder-with-it:sequence=4096`
bool is_hugging_face(const std::string& specification);

/// The family and the settings of a configuration. models/hugging_face/ has a file per `model_type` that maps
/// fields to settings and lists the values that are modelled and the fields without effect here. The sequence
/// length is no part of a configuration: it is required.
/// \throws InputError for an unknown type or field, or a value that is not modelled, naming it
Specification read_hugging_face(const std::string& specification);

}  // namespace stepcast
