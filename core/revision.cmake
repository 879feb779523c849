# Writes the header with version and git revision if they have changed.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty
                OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT revision)
  set(revision unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT
  "#define STEPCAST_VERSION \"${VERSION}\"\n#define STEPCAST_REVISION \"${revision}\"\n")
