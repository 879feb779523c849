#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/expression.hpp"

/// The tables of models/hugging_face/.
namespace stepcast {

/// Which blocks have experts, and what the others have instead.
struct SparseRules {
  std::string first, step;                  ///< fields: first block with experts; every n-th has them, unless
                                            ///< `sparse_layers` lists them
  std::string dense_layers, sparse_layers;  ///< fields: lists of blocks, or of their kinds
  std::map<std::string, std::vector<std::string>> dense;  ///< setting of other blocks: fields, or a number
};

/// How the fields of one `model_type` become settings:
///
/// ```yaml
/// model: llama                              # the family
/// settings: {hidden: hidden_size}           # setting: first given field of a list, or an expression
/// optional: {kv_heads: num_key_value_heads} # the family's default if it is missing or null
/// or_null: {q_rank: q_lora_rank}            # required, and null is 0
/// percent: {dropout: [a_pdrop, b_pdrop]}    # fields of one value, times 100
/// fixed: {attention_bias: 1}                # settings that every model of this type has
/// defaults: {tied: 1}                       # settings of models whose field is missing
/// only: {hidden_act: [silu]}                # values that are modelled; a missing field has the first one
/// windows: [sliding_window, 4096]           # keys that a position sees: a field, its value if missing
/// full_every: [sliding_window_pattern, 6]   # each n-th block sees all, 0: none; unless `layer_types`
/// ignored: [rope_theta]                     # without effect on time and memory
/// sparse: {first: first_k_dense_replace, dense: {experts: 0}}  # see SparseRules
/// block_configs: block_configs              # the field with a list of blocks (Nemotron-NAS)
/// pattern: hybrid_override_pattern          # the field with a letter per block, see settings_of_letter()
/// cases:                                    # further rules where conditions on fields hold
///   - {if: {alibi: true}, fixed: {rotary: 0}}
/// refused: state-space layers               # why the type is not computed
/// ```
///
/// A file has the `model`, `common` rules and the `types` with theirs; a later rule for a setting replaces an
/// earlier one.
struct ConfigurationRules {
  std::string model, refused, block_configs, pattern;
  std::map<std::string, std::vector<std::string>> settings, optional, percent, or_null, fixed, defaults, only;
  std::vector<std::string> windows, full_every;
  std::set<std::string> ignored;
  SparseRules sparse;

  /// All fields that the rules name.
  [[nodiscard]] std::set<std::string> known_fields() const;
};

/// Names of all types, sorted.
std::vector<std::string> configuration_types();

/// Rules of a type. \param fields their values, which conditions read \pre `type` is one of
/// configuration_types()
ConfigurationRules rules_of(const std::string& type, const Assignment& fields);

/// Patterns of field names, in models/hugging_face/fields.yaml.
struct FieldEffects {
  std::vector<std::string> without, with, of_every_file;
  /// True if a field of this name may change time or memory.
  [[nodiscard]] bool may_matter(const std::string& field) const;
  /// True for names such as `vision_config`: objects that describe a part beside the text model.
  [[nodiscard]] bool is_part(const std::string& field) const;
  /// True for fields of tokenizers, generation and storage, which no note lists.
  [[nodiscard]] bool usual(const std::string& field) const;
};
const FieldEffects& field_effects();

}  // namespace stepcast
