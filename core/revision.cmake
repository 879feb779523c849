# Writes the header that holds version and git revision; only touched when they change.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT revision)
  set(revision unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define STEPCAST_VERSION \"${VERSION}\"\n#define STEPCAST_REVISION \"${revision}\"\n")
