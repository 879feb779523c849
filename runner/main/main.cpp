#include "sim/cli/command.hpp"

int main(int argc, char** argv) {
  return stepcast::run_program("stepcast-runner", "Measures on real devices what stepcast forecasts.", argc,
                               argv);
}
