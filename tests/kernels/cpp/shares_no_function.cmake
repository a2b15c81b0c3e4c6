# Fails if OBJECT defines a weak function whose name lacks LEVEL. The linker keeps one of several equal
# weak functions: code for one instruction level could then be called on a machine without it.
execute_process(COMMAND ${NM} --demangle ${OBJECT} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[0-9a-f]+ [WVu] [^\n]+" weak "${symbols}")
list(FILTER weak EXCLUDE REGEX "${LEVEL}|DW\\.ref\\.")
if(weak)
  string(REPLACE ";" "\n  " shown "${weak}")
  message(FATAL_ERROR "functions that other objects may share:\n  ${shown}")
endif()
