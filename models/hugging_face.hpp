#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/specification.hpp"
#include "core/yaml.hpp"

/// Configurations of Hugging Face's transformers, read as models of this project's families.
namespace stepcast {

/// `hf:config.json`, `hf:folder-with-it:sequence=4096`
bool is_hugging_face(const std::string& specification);

using BlockSettings = std::vector<std::pair<std::string, std::string>>;

/// Successive blocks of a model with other settings than the rest.
struct ModelBlocks {
  int first = 0, end = 0;  ///< numbers of blocks: from `first` on, before `end`
  BlockSettings settings{};
};

/// Groups successive blocks with equal settings; settings of all blocks move to `all`. Returns nothing if all
/// blocks are equal.
std::vector<ModelBlocks> grouped_blocks(int layers, const std::function<BlockSettings(int)>& settings_of,
                                        Specification& all);

/// Settings of a family's block with one sublayer, by its letter in Megatron's --hybrid-override-pattern: M a
/// state-space layer, * attention, - a feed-forward layer, E experts. \param where file and field, for errors
/// \throws InputError for another letter
BlockSettings settings_of_letter(char letter, const std::string& where);

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

/// The same for a family, or a file that is like one, with a pattern of letters: of
/// `decoder:pattern=MEM*-`, or of the file's key `pattern`; `layers` takes the first ones. Without a pattern
/// the family is empty. \param given of a command line; loses its pattern \throws InputError
HuggingFaceModel read_pattern(const YamlNode& file, Specification& given);

/// A model file with these settings whose blocks differ: the family's file with its repeated segment once per
/// group of blocks.
std::string model_text(const HuggingFaceModel& model);

}  // namespace stepcast
