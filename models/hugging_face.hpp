#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/specification.hpp"

/// Configurations of Hugging Face's transformers, read as models of this project's families.
namespace stepcast {

/// `hf:config.json`, `hf:folder-with-it:sequence=4096`
bool is_hugging_face(const std::string& specification);

/// Successive blocks of a model with other settings than the rest.
struct ModelBlocks {
  int first = 0, end = 0;  ///< numbers of blocks: from `first` on, before `end`
  std::vector<std::pair<std::string, std::string>> settings{};
};

/// A configuration as a family with settings, and what was made of its fields: one sentence each.
struct HuggingFaceModel {
  std::string type;                   ///< `model_type`
  Specification specification;        ///< the family and its settings
  std::vector<ModelBlocks> blocks{};  ///< empty: all blocks are equal
  std::vector<std::string> assumed{}, ignored{};
  std::vector<std::string> obstacles{};  ///< parts that the product cannot compute yet
};

/// Files in models/hugging_face/ map fields of each `model_type` to settings and list the values
/// that are modelled and the fields without effect here. \param given settings of a command line, which
/// replace the configuration's \throws InputError for an unknown type or a field or value that may have an
/// effect and is not modelled, naming it
HuggingFaceModel read_configuration(const std::string& file, const Specification& given);

/// The same for `hf:config.json:sequence=4096`. The sequence length is no part of a configuration: it is
/// required. \throws InputError also for an obstacle
HuggingFaceModel read_hugging_face(const std::string& specification);

/// A model file with these settings whose blocks differ: the family's file with its repeated segment once per
/// group of blocks.
std::string model_text(const HuggingFaceModel& model);

}  // namespace stepcast
