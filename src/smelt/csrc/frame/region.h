/* Region as a Python type: the call that makes it active. */
#ifndef SMELT_REGION_H
#define SMELT_REGION_H

#include "frame/entry_table.h"

extern PyTypeObject RegionType;

#endif
