#pragma once

#include <nlohmann/json.hpp>

#include "sim/validation/case_prediction.hpp"

namespace stepcast {

/// {"id", "source", "rows": [{the row's own keys, "role", "withheld", "predicted", "relative_error",
/// "relative_errors"}], "assumed", "unidentified"}: `predicted` is null where there is none, and
/// `not_predicted` says why; ranges stand as <key>_low and <key>_high beside <key>. `relative_error` is of
/// the quantity by which the row is judged, null where nothing was measured.
nlohmann::json case_json(const PublishedCase& published, const CasePrediction& prediction);

}  // namespace stepcast
