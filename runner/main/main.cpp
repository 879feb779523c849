#include "sim/cli/command.hpp"
#include "sim/collectives/algorithm.hpp"

int main(int argc, char** argv) {
  stepcast::check_reachable(stepcast::algorithms());
  return stepcast::run_program("stepcast-runner", "Measures on real devices what stepcast forecasts.", argc,
                               argv);
}
