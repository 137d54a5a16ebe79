/* SPDX-License-Identifier: Apache-2.0 */
/* Takes CUPTI out of the process, so that who uses it next finds it as if there had been no window. */
#pragma once
#include "cupti.h"

/* No window is open, and CUPTI is nobody else's, or nothing is done. Takes up to 50 ms. */
void detach(const struct cupti *cupti);
