#pragma once

#include <string>
#include <vector>

#include "plots/figure.hpp"

/// What a whole is made of: bars that each begin where the one before ended, then the whole.
namespace stepcast {

struct WaterfallSheet {
  struct Bar {
    std::string name;
    double value = 0.0;
    bool whole = false;  ///< from 0, whatever came before: `value` is where it ends
  };
  struct Panel {
    std::string title{};
    std::vector<Bar> bars;
  };
  std::string title, y_label;
  std::string more, less{};  ///< what bars up and down are, in the legend; "": there are none down
  std::vector<Panel> panels;
};

/// \throws InputError when there is nothing to draw
Drawing draw_waterfall(const WaterfallSheet& sheet);

}  // namespace stepcast
