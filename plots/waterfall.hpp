#pragma once

#include <string>
#include <vector>

#include "plots/figure.hpp"

/// Parts of a whole: each bar begins at the end of the one before; then the whole.
namespace stepcast {

struct WaterfallSheet {
  struct Bar {
    std::string name;
    double value = 0.0;
    bool whole = false;  ///< begins at 0 and ends at `value`
  };
  struct Panel {
    std::string title{};
    std::vector<Bar> bars;
  };
  std::string title, y_label;
  std::string more, less{};  ///< legend of bars up and down; empty `less`: no bars down
  std::vector<Panel> panels{};
};

/// \throws InputError if there is nothing to draw
Drawing draw_waterfall(const WaterfallSheet& sheet);

}  // namespace stepcast
