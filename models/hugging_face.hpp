#pragma once

#include <string>

#include "core/specification.hpp"

/// Configurations of Hugging Face's transformers, as models of this project's families.
namespace stepcast {

/// `hf:config.json`, `hf:folder-with-it:sequence=4096`
bool is_hugging_face(const std::string& specification);

/// The family and the settings that a configuration says. models/hugging_face/ has a file per `model_type`: which
/// setting each field is, which values are modelled, and which fields change nothing here. The length of sequences is
/// no part of a configuration: it is due.
/// \throws InputError for a type or field that is not known, or a value that is not modelled, naming it
Specification read_hugging_face(const std::string& specification);

}  // namespace stepcast
